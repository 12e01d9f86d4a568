"""What does a round without people bring: clusters become labels, and all begins again?

`python benchmarks/second_round.py FOLDER --run RUN --data DATA [--discovery NAME] [--steps 200]
[--min-score 0.3] [--best-share 0.5] [--processes 2]`

RUN has a finished discovery, NAME or the newest; DATA holds the labelled.json and unlabelled.json
that it was made from, and val.json with all labels. The run is copied, its banks are linked, and
names that people have given are left out. Then its clusters become classes (`rncdl promote
--unnamed`), its detector learns them in some more steps, the detector of the second round is
measured as trained, discovers with the settings of the first discovery, and is measured again.

Everything is kept in FOLDER, by the options it depends on; a second call goes on where the first
stopped. Prints a table and writes it to FOLDER/second_round_....md. Classes that were found count
as clusters, in all lines by protocol `fixed`; AP is of boxes, in percent.
"""

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from clicks import Laboratory, Recipe, copy_run, unfinished
from discovery_quality import COLUMNS, column, read_report

from rncdl.evaluation.ap_tables import markdown_table
from rncdl.files import write_atomically
from rncdl.run_folder import AS_TRAINED, RunFolder

SHOWN = ("known AP", "novel AP", "all AP", "novel acc.", "novel NMI", "called known")
SYSTEMS = {
    "round 1": "head0",
    "round 2, as trained": "trained",
    "round 2, discovered again": "head0",
}
"""Line of the table -> the system in its evaluation's report."""


def measure_rounds(
    laboratory: Laboratory, discovery: str, *, min_score: float, best_share: float
) -> list[Mapping[str, Any]]:
    """The reports of the table's lines; what is there already is not made again."""
    base, taken = laboratory.base, laboratory.recipe.base
    assert taken is not None
    if not base.is_dir():
        with unfinished(base) as half:
            copy_run(taken, half, "compare", "ablate", "report.html", "*.sqlite*")
    first = _report(laboratory, base, discovery)
    options = f"{min_score:g}_{best_share:g}"
    labels = laboratory.folder / f"found_{options}.json"
    if not labels.is_file():
        chosen = ["--min-score", min_score, "--best-share", best_share]
        words = ["--discovery", discovery, "--unnamed", *chosen, "--out", labels]
        laboratory.rncdl("promote", "--run", base, *words)
    second = laboratory.folder / f"second_{options}_{laboratory.recipe.steps}"
    laboratory.train_further(second, labels)
    as_trained = _report(laboratory, second, None)
    settings = RunFolder(base).discovery(discovery).settings_file
    laboratory.discover_with(second, "--preset", settings)
    return [first, as_trained, _report(laboratory, second, "main")]


def _report(laboratory: Laboratory, run: Path, discovery: str | None) -> Mapping[str, Any]:
    """Of an evaluation, which is made where it is missing."""
    path = RunFolder(run).evaluation(laboratory.val.stem, discovery).report_json
    if not path.is_file():
        words = ["--images", laboratory.data, "--discovery", discovery or AS_TRAINED]
        laboratory.rncdl("evaluate", laboratory.val, "--run", run, *words)
    return json.loads(path.read_text())


def table(reports: Sequence[Mapping[str, Any]]) -> str:
    """A line for each measurement of each round."""
    rows = []
    for (title, system), report in zip(SYSTEMS.items(), reports, strict=True):
        found = read_report(report, system)
        clusters = str(report["clusters"][system]["num_clusters"])
        rows.append([title, clusters, *(column([found], *COLUMNS[name]) for name in SHOWN)])
    return markdown_table(["", "clusters", *SHOWN], rows)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--run", type=Path, required=True, help="with a finished discovery")
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--discovery", help="default: the newest finished one")
    parser.add_argument("--steps", type=int, default=200, help="of the second training")
    parser.add_argument("--min-score", type=float, default=0.3)
    parser.add_argument("--best-share", type=float, default=0.5)
    parser.add_argument("--processes", type=int, default=2)
    options = parser.parse_args()
    options.discovery = RunFolder(options.run).choose_discovery(options.discovery)
    if options.discovery in (None, AS_TRAINED):
        parser.error("--run needs a finished discovery")
    return options


def main() -> None:
    options = _options()
    data = options.data.resolve()
    recipe = Recipe(
        preset=None,
        base=options.run.resolve(),
        clusters=0,  # the first discovery's settings tell
        steps=options.steps,
        retraining=(),
        processes=options.processes,
    )
    laboratory = Laboratory(options.folder.resolve(), 0, data, data / "val.json", recipe)
    laboratory.folder.mkdir(parents=True, exist_ok=True)
    chosen = {"min_score": options.min_score, "best_share": options.best_share}
    text = table(measure_rounds(laboratory, options.discovery, **chosen))
    print(text)
    name = f"second_round_{options.min_score:g}_{options.best_share:g}_{options.steps}.md"
    write_atomically(laboratory.folder / name, text.encode())


if __name__ == "__main__":
    main()
