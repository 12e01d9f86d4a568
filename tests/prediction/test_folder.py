import json
from pathlib import Path

import pytest

from rncdl.data.datasets import BadImage
from rncdl.data.records import ImageRecord
from rncdl.errors import UserError
from rncdl.prediction.folder import BatchLog, PredictionFolder, read_skipped

BAD = BadImage("b.jpg", "b.jpg: broken")


def entries(*ids: int) -> list[bytes]:
    return [json.dumps({"image_id": i}).encode() for i in ids]


def test_a_log_that_is_not_there_has_no_batches(tmp_path: Path):
    assert BatchLog(tmp_path / "log").num_batches == 0


def test_a_log_without_batches_skips_nothing(tmp_path: Path):
    BatchLog(tmp_path / "log").close()
    assert read_skipped(tmp_path / "log") == []


def test_wherever_a_log_is_cut_it_goes_on_after_its_last_whole_batch(tmp_path: Path):
    path = tmp_path / "log"
    log = BatchLog(path)
    ends = [0]
    for batch in (entries(1, 2), [], entries(3)):
        log.write(batch, [BAD] if not batch else [])
        ends.append(path.stat().st_size)
    whole = path.read_bytes()
    assert read_skipped(path) == [BAD]
    for cut in range(len(whole) + 1):
        path.write_bytes(whole[:cut])
        again = BatchLog(path)
        done = sum(end <= cut for end in ends[1:])
        assert again.num_batches == done
        assert path.stat().st_size == ends[done]
        for batch in [entries(1, 2), [], entries(3)][done:]:
            again.write(batch, [BAD] if not batch else [])
        assert path.read_bytes() == whole


def test_a_finished_folder_has_the_files_for_everybody(tmp_path: Path):
    folder = PredictionFolder(tmp_path / "out")
    folder.begin({"run": "a"}, overwrite=False)
    for rank in range(2):
        log = BatchLog(folder.batches_file(rank))
        log.write(entries(rank + 1), [BAD] if rank else [])
        log.close()
    assert not folder.is_finished
    images = [ImageRecord(1, Path("a.jpg"), 2, 3), ImageRecord(2, Path("b.jpg"), 2, 3)]
    unreadable = [BadImage("c.jpg", "c.jpg: empty")]
    folder.finish(
        images, categories=[{"id": 1, "name": "cat"}], unreadable=unreadable, num_processes=2
    )
    assert folder.is_finished
    assert json.loads(folder.predictions_file.read_text()) == [{"image_id": 1}, {"image_id": 2}]
    listed = json.loads(folder.images_file.read_text())
    assert listed["images"] == [{"id": 1, "file_name": "a.jpg", "width": 3, "height": 2}]
    assert listed["categories"] == [{"id": 1, "name": "cat"}]
    assert folder.skipped_images() == [*unreadable, BAD]
    left = {path.name for path in folder.path.iterdir()}
    expected = {"made_with.json", "predictions.json", "images.json", "skipped_images.jsonl"}
    assert left == expected


def test_another_origin_is_refused_unless_overwritten(tmp_path: Path):
    folder = PredictionFolder(tmp_path)
    folder.require_origin({"nms": 0.5}, overwrite=False)
    folder.begin({"nms": 0.5, "draw": True}, overwrite=False)
    folder.require_origin({"nms": 0.5}, overwrite=False)
    with pytest.raises(UserError, match=r"--overwrite.*\n  nms: 0.5, now 0.4"):
        folder.require_origin({"nms": 0.4}, overwrite=False)
    folder.require_origin({"nms": 0.4}, overwrite=True)
    made = (folder.predictions_file, folder.batches_file(3), folder.drawings_dir / "1.jpg")
    folder.drawings_dir.mkdir()
    mine = tmp_path / "mine.txt"
    for path in (*made, mine):
        path.touch()
    folder.begin({"nms": 0.4}, overwrite=True)
    assert not any(path.exists() for path in made)
    assert mine.exists()


@pytest.mark.parametrize("overwrite", [True, False])
def test_files_of_somebody_else_are_never_touched(tmp_path: Path, overwrite: bool):
    folder = PredictionFolder(tmp_path)
    folder.drawings_dir.mkdir()
    with pytest.raises(UserError, match="drawings was not made by `rncdl predict`"):
        folder.require_origin({}, overwrite=overwrite)
