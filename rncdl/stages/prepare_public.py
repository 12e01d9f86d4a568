"""`rncdl prepare coco-half-lvis` and `lvis-vg`: the paper's settings from public files."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.table import Table

from rncdl.data.public.coco_half_lvis import make_coco_half_lvis
from rncdl.data.public.counts import Count
from rncdl.data.public.formats import MadeFile, link_image_folders
from rncdl.data.public.lvis_vg import make_lvis_vg
from rncdl.files import write_atomically
from rncdl.training.progress import console, say

KNOWN_FILE = "known.txt"


def prepare_coco_half_lvis(
    coco: Path, lvis: Path, out: Path, *, seed: int, authors_split: Path | None
) -> None:
    """Write the files of COCO-half -> LVIS into `out`, and print their counts."""
    made = make_coco_half_lvis(coco, lvis, seed=seed, authors_split=authors_split)
    files = {
        "labelled.json": made.labelled,
        "known_val.json": made.known_val,
        "unlabelled.json": made.unlabelled,
        "val.json": made.val,
    }
    _write(out, files, made.known, image_roots=[coco, lvis])
    _show(made.counts(), {})


def prepare_lvis_vg(lvis: Path, vg: Path, out: Path, *, coco: Path | None) -> None:
    """Write the files of LVIS -> Visual Genome into `out`, and print their counts."""
    made = make_lvis_vg(lvis, vg)
    files = {
        "labelled.json": made.labelled,
        "unlabelled.json": made.unlabelled,
        "val.json": made.val,
    }
    roots = [vg, lvis] if coco is None else [vg, coco, lvis]
    _write(out, files, made.known, image_roots=roots)
    _show(made.counts(), made.problems)


def _write(
    out: Path, files: Mapping[str, MadeFile], known: Sequence[str], *, image_roots: Sequence[Path]
) -> None:
    link_image_folders(
        out, (image for file in files.values() for image in file.images), image_roots
    )
    for name, file in files.items():
        file.write(out / name)
    write_atomically(out / KNOWN_FILE, "".join(f"{name}\n" for name in known).encode())
    say(f"{out}: {', '.join(files)}, {KNOWN_FILE}, links to the image folders")


def _show(counts: Sequence[Count], problems: Mapping[str, int]) -> None:
    table = Table()
    table.add_column("")
    table.add_column("here", justify="right")
    table.add_column("paper", justify="right")
    table.add_column("")
    for count in counts:
        mark = "" if count.agrees else "differs"
        table.add_row(count.what, f"{count.found:,}", count.paper_text, mark)
    console.print(table)
    for kind, number in problems.items():
        say(f"{number:,} × {kind}")
