"""`rncdl prepare coco-half-lvis` and `lvis-vg`, from the command line to files that load."""

import json
from pathlib import Path

from rncdl.classes import ClassSplit
from rncdl.data.check import find_problems
from tests.pipeline.tiny import run_rncdl


def test_coco_half_lvis_is_ready_to_train_on(downloads: Path, tmp_path: Path):
    out = tmp_path / "out"
    words = ["--coco", downloads / "coco", "--lvis", downloads / "lvis", "--out", out]
    said = run_rncdl("prepare", "coco-half-lvis", *words)
    assert "1,124" in said  # the paper's column
    assert "differs" in said
    for name in ("labelled.json", "known_val.json", "unlabelled.json", "val.json"):
        assert find_problems(out / name) == []  # every image is found, too
    assert ClassSplit.from_names(str(out / "known.txt")).known == (
        *("person", "car_(automobile)", "kite", "hot dog"),
    )
    first = (out / "labelled.json").read_bytes()
    run_rncdl("prepare", "coco-half-lvis", *words)
    assert (out / "labelled.json").read_bytes() == first
    run_rncdl("prepare", "coco-half-lvis", *words, "--authors-split", downloads / "authors")
    labelled = json.loads((out / "labelled.json").read_text())
    assert [image["id"] for image in labelled["images"]] == [9, 34]


def test_lvis_vg_is_ready_to_train_on(downloads: Path, tmp_path: Path):
    out = tmp_path / "out"
    words = ["prepare", "lvis-vg", "--lvis", downloads / "lvis", "--vg", downloads / "vg"]
    said = run_rncdl(*words, "--out", out, code=2)
    assert "No folder train2017 of images" in said
    said = run_rncdl(*words, "--coco", downloads / "coco", "--out", out)
    assert "2,726" in said
    assert "1 × box entirely outside its image" in said
    for name in ("labelled.json", "unlabelled.json", "val.json"):
        assert find_problems(out / name) == []
