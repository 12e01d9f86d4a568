"""The learning curves of a run, drawn again whenever a phase ends or is stopped."""

from collections.abc import Iterator
from contextlib import contextmanager

from rncdl.files import write_atomically
from rncdl.gallery.curves import draw_curves
from rncdl.gallery.findings import journal_lines
from rncdl.run_folder import RunFolder
from rncdl.training.journal import read_journal
from rncdl.training.processes import Processes
from rncdl.training.progress import say


@contextmanager
def curves_drawn(
    run: RunFolder, processes: Processes, discovery: str | None = None
) -> Iterator[None]:
    """Draw the curves when the work inside ends, whatever ended it."""
    try:
        yield
    finally:
        if processes.is_main:
            write_curves(run, discovery)


def write_curves(run: RunFolder, discovery: str | None) -> None:
    """The picture of the training and of one discovery, where there is anything to draw."""
    phases = {"Training": journal_lines(read_journal(run.train_journal))}
    if discovery is not None:
        journal = run.discovery(discovery).journal
        phases[f"Discovery: {discovery}"] = journal_lines(read_journal(journal))
    picture = draw_curves(phases)
    if picture is not None:
        write_atomically(run.curves_file, picture.encode())
        say(f"Learning curves: {run.curves_file}")
