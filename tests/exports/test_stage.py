"""`rncdl export` from images, interrupted, and over an earlier export."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from rncdl.errors import UserError
from rncdl.exports.exported import ExportRequest
from rncdl.exports.writer import Writer
from rncdl.exports.writers import WRITERS
from rncdl.prediction.folder import PredictionFolder
from rncdl.stages import export as stage
from tests.exports.made_up import NAMES, run_export


def files_below(out: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(out)): path.read_bytes()
        for path in sorted(out.rglob("*"))
        if path.is_file()
    }


class PowerCutError(Exception):
    """Nothing catches it."""


def crash_in(name: str, calls: int, owner: Any, patch: pytest.MonkeyPatch) -> None:
    """Let the function do its work so many times, and end the export in the next one's middle."""
    work, left = getattr(owner, name), iter(range(calls))

    def work_or_crash(*arguments: Any) -> Any:
        result = work(*arguments)
        if next(left, None) is None:
            raise PowerCutError
        return result

    patch.setattr(owner, name, work_or_crash)


@pytest.mark.parametrize("name", WRITERS)
@pytest.mark.parametrize(
    "place", ["first image placed", "second image written", "before the last files"]
)
def test_an_interrupted_export_goes_on_to_the_same_files(
    predictions: PredictionFolder,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    place: str,
):
    (tmp_path / "photos" / NAMES[1]).unlink()
    request = ExportRequest(format=name, out=tmp_path / "whole" / "out", min_score=0.1)
    assert stage.export(request, predictions, overwrite=False) == 1
    cut = ExportRequest(format=name, out=tmp_path / "cut" / "out", min_score=0.1)
    with monkeypatch.context() as patch:
        if place == "first image placed":
            crash_in("place_image", 0, stage, patch)
        elif place == "second image written":
            crash_in("add", 1, WRITERS[name], patch)
        else:
            patch.setattr(WRITERS[name], "finish", crash_before)
        with pytest.raises(PowerCutError):
            stage.export(cut, predictions, overwrite=False)
    log = cut.out / ".rncdl" / "images.partial"
    with log.open("ab") as file:
        file.write(b'{"half of a li')
    assert stage.export(cut, predictions, overwrite=False) == 1
    assert files_below(cut.out) == files_below(request.out)
    assert not log.exists()


def crash_before(writer: Writer, lines: Any) -> None:
    raise PowerCutError


def test_going_on_does_not_write_again_what_is_done(
    predictions: PredictionFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    with monkeypatch.context() as patch:
        crash_in("add", 2, WRITERS["coco"], patch)
        with pytest.raises(PowerCutError):
            run_export(predictions, tmp_path / "out", "coco")
    written: list[int] = []
    add = WRITERS["coco"].add

    def add_and_tell(writer: Writer, image: Any) -> Any:
        written.append(image.id)
        return add(writer, image)

    monkeypatch.setattr(WRITERS["coco"], "add", add_and_tell)
    run_export(predictions, tmp_path / "out", "coco")
    assert written == [3]


def test_overwrite_leaves_nothing_of_the_earlier_export_and_no_file_of_somebody_elses(
    predictions: PredictionFolder, tmp_path: Path
):
    out = run_export(predictions, tmp_path / "out", "yolo")
    (out / "notes.txt").write_text("mine")
    request = ExportRequest(format="coco", out=out, min_score=0.1)
    with pytest.raises(UserError, match="format: 'yolo', now 'coco'"):
        stage.export(request, predictions, overwrite=False)
    assert (out / "data.yaml").is_file()
    assert stage.export(request, predictions, overwrite=True) == 0
    new = files_below(run_export(predictions, tmp_path / "new" / "out", "coco"))
    assert files_below(out) == {**new, "notes.txt": b"mine"}


def test_overwrite_over_the_same_options_exports_again(
    predictions: PredictionFolder, tmp_path: Path
):
    out = run_export(predictions, tmp_path / "out", "voc")
    whole = files_below(out)
    (out / "Annotations" / "none.xml").write_text("spoilt")
    run_export(predictions, out, "voc")
    assert files_below(out) != whole
    request = ExportRequest(format="voc", out=out, min_score=0.1)
    assert stage.export(request, predictions, overwrite=True) == 0
    assert files_below(out) == whole


def test_a_folder_of_somebody_elses_is_never_written_to(
    predictions: PredictionFolder, tmp_path: Path
):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "data.yaml").write_text("mine")
    request = ExportRequest(format="yolo", out=tmp_path / "out", min_score=0.1)
    for overwrite in (False, True):
        with pytest.raises(UserError, match="not made by `rncdl export`"):
            stage.export(request, predictions, overwrite=overwrite)
    assert files_below(tmp_path / "out") == {"data.yaml": b"mine"}


def test_images_that_prediction_could_not_read_are_told_too(
    predictions: PredictionFolder, tmp_path: Path
):
    bad = {"path": "broken.png", "reason": "broken.png: cannot read"}
    predictions.skipped_images_file.write_text(json.dumps(bad) + "\n")
    request = ExportRequest(format="coco", out=tmp_path / "out", min_score=0.1)
    assert stage.export(request, predictions, overwrite=False) == 1
    listed = (tmp_path / "out" / "skipped_images.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in listed] == [bad]


def test_copies_are_files_of_their_own_and_links_are_not(
    predictions: PredictionFolder, tmp_path: Path
):
    from rncdl.exports.exported import Placing

    source = tmp_path / "photos" / NAMES[0]
    for placing, same in ((Placing.LINK, True), (Placing.COPY, False)):
        out = run_export(predictions, tmp_path / placing, "coco", placing=placing)
        assert (out / "images" / "a__1 ü.png").samefile(source) is same
        shutil.rmtree(out)
