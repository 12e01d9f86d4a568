"""Making and checking datasets."""

from collections import defaultdict
from collections.abc import Sequence
from itertools import count
from pathlib import Path

from rich.table import Table

from rncdl.data.check import find_problems, find_shared_images, image_paths
from rncdl.data.conversion import write_coco
from rncdl.data.problems import Problem, ProblemKind
from rncdl.data.shapes import World, draw_world
from rncdl.errors import UserError
from rncdl.inputs import load_dataset
from rncdl.training.progress import ProgressLine, console, say

MAX_ROWS = 200
"""Problems shown one by one; more are only counted."""
MAX_ROWS_IN_PASSING = 10
"""Where the check is but the first step of a run."""


def prepare_shapes(out: Path, world: World) -> None:
    """Draw the world into `out`."""
    with ProgressLine("draw", world.num_images, unit="images") as progress:
        draw_world(out, world, progress=lambda done, _: progress.advance_to(done))
    say(f"{out}: labelled.json, unlabelled.json, val.json, oracle.json, images/")


def check_dataset(
    path: Path, images: Path | None, *, train: Path | None = None, train_images: Path | None = None
) -> int:
    """Print what is wrong with a dataset as a table; 0 when nothing is, else 1.

    `train`: a dataset whose images it must not share.
    """
    trained_on = [] if train is None else image_paths(train, train_images)
    problems = _find(path, images, trained_on=trained_on)
    return 1 if _show(path, problems, max_rows=MAX_ROWS) else 0


def show_problems(
    path: Path, images: Path | None, *, trained_on: Sequence[Path] = ()
) -> list[Problem]:
    """All problems of a dataset; the first few of each kind are printed."""
    problems = _each_kind_first(_find(path, images, trained_on=trained_on))
    return _show(path, problems, max_rows=MAX_ROWS_IN_PASSING)


def _find(path: Path, images: Path | None, *, trained_on: Sequence[Path]) -> list[Problem]:
    return [
        *find_problems(path, images),
        *find_shared_images(path, images, trained_on=trained_on),
    ]


def _each_kind_first(problems: Sequence[Problem]) -> list[Problem]:
    """One problem of each kind, then a second one of each, and so on."""
    numbers: defaultdict[ProblemKind, count[int]] = defaultdict(count)
    return sorted(problems, key=lambda problem: next(numbers[problem.kind]))


def _show(path: Path, problems: list[Problem], *, max_rows: int) -> list[Problem]:
    if not problems:
        say(f"{path}: nothing wrong.")
        return problems
    table = Table(title=f"{path}: {len(problems)} problems")
    for column in ("problem", "where", "value", "what happens"):
        table.add_column(column, overflow="fold")
    for problem in problems[:max_rows]:
        table.add_row(problem.kind, problem.where, problem.value, problem.consequence)
    console.print(table)
    if len(problems) > max_rows:
        say(f"... and {len(problems) - max_rows} more (all of them: rncdl prepare check {path})")
    return problems


def convert_dataset(path: Path, images: Path | None, out: Path, *, overwrite: bool) -> None:
    """Write a dataset of any format as a COCO file."""
    if out.exists() and not overwrite:
        raise UserError(f"{out}: is there already; choose another --out, or give --overwrite.")
    if out.is_dir():
        raise UserError(f"{out}: a folder; --out is the json file to write.")
    annotations = load_dataset(path, images, shown=True)
    write_coco(annotations, out)
    say(
        f"{out}: {len(annotations.images):,} images, {len(annotations.annotation_ids):,} objects "
        f"of {len(annotations.categories):,} classes"
    )
