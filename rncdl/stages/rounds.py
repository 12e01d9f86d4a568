"""`rncdl rounds`: what each round of naming and retraining has brought."""

from collections.abc import Iterator
from pathlib import Path

from rncdl.errors import UserError
from rncdl.evaluation.ap_tables import screen_table
from rncdl.gallery.findings import HeadlineRow, read_classes, round_row
from rncdl.run_folder import EvaluationFolder, RunFolder
from rncdl.training.progress import console


def show_rounds(run_path: Path) -> None:
    """Print the figures of a run and of those it was started from, by validation set."""
    tables = rounds_of(RunFolder(run_path), even_one=True)
    if not tables:
        raise UserError(
            f"{run_path}: neither this run nor one that it was started from was evaluated yet; "
            "run `rncdl evaluate`."
        )
    for val_name, rows in tables.items():
        cells = [
            [row.name, *map(_percent, (row.known_ap, row.novel_ap, row.all_ap))] for row in rows
        ]
        header = ["Round", "known AP", "novel AP", "all AP"]
        console.print(screen_table(f"Round by round on {val_name}, boxes", header, cells))


def rounds_of(run: RunFolder, *, even_one: bool = False) -> dict[str, list[HeadlineRow]]:
    """Validation set -> a row for each measurement of each round, the first round first.

    Known are the classes that the first round was trained on. Nothing for a run that was started
    from no other, unless `even_one`.
    """
    runs = _chain(run)
    if len(runs) == 1 and not even_one:
        return {}
    known = runs[0].split().known
    tables: dict[str, list[HeadlineRow]] = {}
    for number, one in enumerate(runs, 1):
        for what, folders, readings in _measured(one):
            for val_name, folder in folders.items():
                tables_of_classes = (read_classes(folder.classes(name)) for name in readings)
                classes = next(filter(None, tables_of_classes), None)
                if classes:
                    row = round_row(f"{number}. {one.path.name}: {what}", classes, known)
                    tables.setdefault(val_name, []).append(row)
    return tables


def _chain(run: RunFolder) -> list[RunFolder]:
    """The run and those it was started from, the first one first; as far as they are there."""
    runs = [run]
    while runs[0].inputs_file.is_file():
        start = runs[0].inputs().start_from
        if start is None or not RunFolder(Path(start)).exists:
            break
        runs.insert(0, RunFolder(Path(start)))
    return runs


def _measured(
    run: RunFolder,
) -> Iterator[tuple[str, dict[str, EvaluationFolder], tuple[str, ...]]]:
    """What was measured of a run: in words, its evaluations, and which of their tables it may be.

    Classes of a detector that nobody has named count as clusters, which a protocol matches.
    """
    split = run.split()
    found = f" and {len(split.found)} found without a name" if split.found else ""
    trained = f"detector of {split.num_known - len(split.found)} classes{found}"
    yield trained, run.evaluations_of(None), ("trained_bbox", "trained_fixed_bbox")
    name = run.choose_discovery(None)
    if name is not None:
        matched = "discovered, clusters matched to classes"
        yield matched, run.evaluations_of(name), ("head0_fixed_bbox",)
        named = "discovered, clusters as people have named them"
        yield named, run.evaluations_of(name, decided=True), ("head0_named_bbox",)


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.1f}"
