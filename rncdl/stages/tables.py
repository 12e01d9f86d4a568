"""What `rncdl compare` and `rncdl ablate` have in common: the request before, the table after."""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rncdl.config import Settings, resolve_settings
from rncdl.errors import UserError, did_you_mean
from rncdl.evaluation.comparison import DIVERGED, Comparison, Line
from rncdl.evaluation.outcomes import AP_METRICS
from rncdl.files import write_atomically
from rncdl.gallery.bars import Bar, Panel, bar_chart
from rncdl.origins import digest
from rncdl.run_folder import DiscoveryInputs, RunFolder
from rncdl.stages.discover import load_pool, named_inputs
from rncdl.stages.info import versions
from rncdl.stages.loading import load_dataset, load_detector
from rncdl.stages.rows import Ground
from rncdl.table_folder import TableFolder
from rncdl.training.processes import join_processes
from rncdl.training.progress import console, say


@dataclass(frozen=True)
class TableRequest:
    """Which run is measured, on what, and from what its rows start."""

    run: Path
    val: Path
    images: Path | None = None
    unlabelled: Sequence[Path] = ()
    unlabelled_images: Path | None = None
    discovery: str | None = None
    """whose settings and images are taken; None: the newest finished one, else the run's own"""
    preset: str | None = None
    overrides: Sequence[str] = field(default_factory=list)


@dataclass(frozen=True)
class Begun:
    """A table that has begun: what it is made from is noted in its folder."""

    run: RunFolder
    folder: TableFolder
    settings: Settings
    pool: DiscoveryInputs
    val: Path
    images: Path | None


def begin_table(request: TableRequest, folder: TableFolder) -> Begun:
    """Settle what the rows start from; a table begun before goes on only from the same."""
    run = RunFolder(request.run)
    discovery = run.choose_discovery(request.discovery)
    base = folder.settings() or (
        run.settings() if discovery is None else run.discovery(discovery).settings()
    )
    settings = resolve_settings(request.preset, request.overrides, base=base)
    pool = _pool_inputs(request, run, folder, discovery)
    inputs = {
        "val": str(request.val.resolve()),
        "val_digest": digest(_read_bytes(request.val)),
        "detector_digest": digest(_read_bytes(run.detector_file)),
        "pool": {**asdict(pool), "unlabelled": list(pool.unlabelled)},
    }
    folder.require_same(settings, inputs)
    folder.begin(settings, inputs)
    return Begun(run, folder, settings, pool, request.val, request.images)


@contextmanager
def open_ground(begun: Begun) -> Iterator[Ground]:
    """Everything the rows share, loaded once."""
    settings, split = begun.settings, begun.run.split()
    with join_processes(settings.device) as processes:
        shown = processes.is_main
        yield Ground(
            run=begun.run,
            folder=begun.folder,
            settings=settings,
            split=split,
            detector=load_detector(begun.run, settings, split).to(processes.device).eval(),
            pool=load_pool(begun.run, begun.pool, settings=settings, shown=shown),
            truth=load_dataset(begun.val, begun.images, shown=shown),
            processes=processes,
        )


def _pool_inputs(
    request: TableRequest, run: RunFolder, folder: TableFolder, discovery: str | None
) -> DiscoveryInputs:
    """The pool's files: those named, else those the table or the discovery noted."""
    if request.unlabelled:
        return named_inputs(
            run,
            request.unlabelled,
            unlabelled_images=request.unlabelled_images,
            labelled=None,
            images=None,
        )
    if folder.inputs_file.is_file():
        noted = json.loads(folder.inputs_file.read_text("utf-8"))["pool"]
        return DiscoveryInputs(**{**noted, "unlabelled": tuple(noted["unlabelled"])})
    found = None if discovery is None else run.discovery(discovery).inputs()
    if found is None:
        raise UserError(
            f"{run.path}: no finished discovery tells which images are unlabelled; "
            "name them with --unlabelled."
        )
    return found


def _read_bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise UserError(f"{path}: cannot read it ({error.strerror}).") from error


def parse_numbers(text: str, *, option: str, least: int) -> list[int]:
    """Whole numbers that were given with commas, each once."""
    try:
        numbers = [int(word) for word in text.split(",")]
    except ValueError:
        numbers = []
    if not numbers or min(numbers) < least or len(set(numbers)) < len(numbers):
        raise UserError(
            f"{option}={text!r}: give different whole numbers from {least} on, with commas "
            f"between them, e.g. {option} {least},{least + 1},{least + 2}."
        )
    return numbers


def parse_names(text: str, choices: Sequence[str], *, option: str) -> list[str]:
    """Names that were given with commas, each of them one of `choices`; `all` is all of them."""
    if text == "all":
        return list(choices)
    names = list(dict.fromkeys(word.strip() for word in text.split(",") if word.strip()))
    for name in names or [text]:
        if name not in choices:
            raise UserError(
                f"{option}: unknown {name!r}.{did_you_mean(name, choices)} "
                f"Choose from: {', '.join(choices)}, or all."
            )
    return names


def write_tables(folder: TableFolder, tables: Sequence[Comparison], *, heading: str) -> None:
    """The tables on the screen, as Markdown, as json with every number, and as bar charts."""
    facts = (
        "Box AP in percent, clusters named by the `fixed` protocol; accuracy and NMI of the "
        "annotated boxes in clusters. Mean ± standard deviation over seeds. Published figures: "
        f"{tables[0].source}; another dataset at another scale, so only orders can be compared."
    )
    parts = [f"# {heading}\n", f"{facts}\n", *(table.to_markdown() for table in tables)]
    write_atomically(folder.markdown_file, "\n".join(parts).encode())
    settings = folder.settings()
    content: dict[str, Any] = {
        "title": heading,
        "tables": [table.to_dict() for table in tables],
        "settings": settings.model_dump(mode="json") if settings else None,
        "versions": versions(),
    }
    write_atomically(folder.json_file, json.dumps(content, indent=2).encode())
    for table in tables:
        write_atomically(folder.chart_file(table.name), draw_chart(table).encode())
        for part in table.to_screen():
            console.print(part)
        for note in table.notes():
            say(note)
    say(f"Table: {folder.markdown_file}, every number: {folder.json_file}, charts beside them")


def draw_chart(table: Comparison) -> str:
    """The table's AP as bars, beside the published ones."""
    ours = Panel(
        "here (box AP, %)",
        [_bars(table, line) for line in table.lines],
        [_word(table, line) for line in table.lines],
    )
    published = Panel(
        "in the paper (box mAP, %)",
        [
            [None if value is None else Bar(value) for value in line.published.values()]
            if line.published
            else []
            for line in table.lines
        ],
        [DIVERGED if line.published and line.published.diverged else "" for line in table.lines],
    )
    return bar_chart(
        table.title,
        [line.title for line in table.lines],
        series=[metric.group for metric in AP_METRICS],
        panels=[ours, published],
    )


def _bars(table: Comparison, line: Line) -> list[Bar | None]:
    found = [table.summary(line, metric) for metric in AP_METRICS]
    return [None if one is None else Bar(one.mean, one.spread or 0.0) for one in found]


def _word(table: Comparison, line: Line) -> str:
    if line.left_out:
        return "left out"
    return DIVERGED if table.has_diverged(line) else ""
