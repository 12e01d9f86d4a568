import dataclasses
import inspect
from typing import Any

import msgspec
import numpy as np
import pytest
import torch

from rncdl.classes import ClassSplit, KnownLabels
from rncdl.data.annotations import load_annotations
from rncdl.data.batch_loader import BatchLoader
from rncdl.data.batches import EvaluationBatches, TrainingBatches
from rncdl.data.datasets import BadImage, ImageReader, LabelledImages, PlainImages
from rncdl.data.masks import encode_rle, rle_to_json
from rncdl.data.samples import Sample
from rncdl.data.unlabelled_objects import WITHOUT_CLASS, FoundObject, UnlabelledObjects
from rncdl.data.variation import Variation
from rncdl.errors import UserError
from tests.data.made_up import annotation_entry, gradient, image_entry, write_coco, write_image

PLAIN: dict[str, Any] = {"variation": Variation((48,), 64, 0.0, "none"), "with_masks": True}
VARIED: dict[str, Any] = {
    "variation": Variation((24, 36, 48), 64, 0.5, "weak"),
    "with_masks": True,
}
NUM_IMAGES = 8


def square(x, y, side=8):
    return [x, y, x + side, y, x + side, y + side, x, y + side]


@pytest.fixture
def labels(tmp_path):
    """Image i has a cat at (2i, 2i); image 1 also a novel owl, a crowd of dogs, and a dog."""
    for i in range(NUM_IMAGES):
        write_image(tmp_path / f"{i}.png")
    entries = [
        annotation_entry(
            i, image_id=i, bbox=[2 * i, 2 * i, 8, 8], segmentation=[square(2 * i, 2 * i)]
        )
        for i in range(NUM_IMAGES)
    ]
    entries += [
        annotation_entry(20, image_id=1, category_id=3),
        annotation_entry(21, image_id=1, category_id=90, iscrowd=1),
        annotation_entry(
            22, image_id=1, category_id=90, bbox=[20, 20, 8, 8], segmentation=[square(20, 20)]
        ),
    ]
    path = write_coco(
        tmp_path / "labels.json",
        images=[image_entry(i) for i in range(NUM_IMAGES)],
        annotations=entries,
        categories=[{"id": 3, "name": "owl"}, {"id": 90, "name": "dog"}, {"id": 7, "name": "cat"}],
    )
    return ClassSplit(("cat", "dog")).keep_known(load_annotations(path).annotations)


def load(dataset, index: int, seed: int = 0) -> Any:
    """The item, which must not be a bad image."""
    item = dataset[index, seed]
    assert isinstance(item, Sample)
    return item


def same(a, b):
    return all(
        torch.equal(x, y) if isinstance(x, torch.Tensor) else x == y
        for x, y in (
            (getattr(a, field.name), getattr(b, field.name)) for field in dataclasses.fields(a)
        )
    )


def test_an_item_holds_the_image_and_its_known_annotations(labels):
    item = load(LabelledImages(labels, **PLAIN), 1)
    np.testing.assert_array_equal(item.image.permute(1, 2, 0).numpy(), gradient())
    assert item.boxes_xyxy.tolist() == [[2, 2, 10, 10], [20, 20, 28, 28]]
    assert item.boxes_xyxy.dtype == torch.float32
    assert item.labels.tolist() == [0, 1]
    assert item.masks.dtype == torch.bool
    assert torch.argwhere(item.masks[1]).amin(0).tolist() == [20, 20]
    assert item.masks.sum((1, 2)).tolist() == [64, 64]
    assert (item.image_index, item.original_size) == (1, (48, 64))
    assert item.path.endswith("1.png")


def test_masks_are_decoded_only_if_wanted(labels):
    dataset = LabelledImages(labels, **PLAIN | {"with_masks": False})
    assert load(dataset, 0).masks is None


def test_an_image_whose_annotations_are_all_novel_is_empty(labels):
    only_dogs = ClassSplit(("dog",)).keep_known(labels.annotations)
    item = load(LabelledImages(only_dogs, **PLAIN), 0)
    assert item.boxes_xyxy.shape == (0, 4)
    assert item.labels.shape == (0,)
    assert item.masks.shape == (0, 48, 64)


def test_the_seed_alone_decides_an_item(labels):
    dataset, again = LabelledImages(labels, **VARIED), LabelledImages(labels, **VARIED)
    items = [load(dataset, 2, seed) for seed in range(12)]
    torch.manual_seed(5)
    assert all(same(item, load(again, 2, seed)) for seed, item in enumerate(items))
    assert len({(tuple(i.image.shape), i.boxes_xyxy[0, 0].item()) for i in items}) > 3


def test_training_samples_are_built_from_known_labels_only():
    annotation = inspect.signature(LabelledImages.__init__).parameters["labels"].annotation
    assert annotation is KnownLabels


def test_plain_images_have_no_labels_and_one_size(labels):
    dataset = PlainImages(labels.annotations.images, short_side_px=24, long_side_px=1000)
    assert len(dataset) == NUM_IMAGES
    item = load(dataset, 3, 99)
    assert item.image.shape == (3, 24, 32)
    assert len(item.boxes_xyxy) == len(item.labels) == 0
    assert item.original_size == (48, 64)
    assert same(item, load(dataset, 3, 7))


@pytest.mark.parametrize("workers", [0, 2])
def test_batches_do_not_depend_on_workers(labels, workers):
    dataset = LabelledImages(labels, **VARIED)
    batches = TrainingBatches(labels.annotations.images, batch_size=3, seed=4)
    expected = [[dataset[key] for key in keys] for keys, _ in zip(batches, range(5), strict=False)]
    state = torch.get_rng_state()
    loader = iter(BatchLoader(dataset, batches, workers=workers))
    for samples in expected:
        batch = next(loader)
        assert batch.bad_images == []
        assert len(batch.samples) == 3
        assert all(same(a, b) for a, b in zip(batch.samples, samples, strict=True))
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_bad_image_is_an_error_with_its_own_words_alone(labels, workers):
    path = labels.annotations.images[2].path
    path.unlink()
    dataset = LabelledImages(labels, **PLAIN)
    loader = BatchLoader(dataset, EvaluationBatches(NUM_IMAGES, batch_size=4), workers=workers)
    with pytest.raises(UserError) as caught:
        list(loader)
    assert type(caught.value) is UserError
    assert str(caught.value) == f"{path}: cannot read the image (No such file or directory)."


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", ["labelled", "plain"])
def test_a_bad_image_is_passed_over_and_recorded_when_told_to(labels, workers, kind):
    records = labels.annotations.images
    records[2].path.write_bytes(b"broken")
    write_image(records[5].path, height=10, width=10)
    dataset = (
        LabelledImages(labels, **PLAIN, on_bad_image="skip")
        if kind == "labelled"
        else PlainImages(records, short_side_px=48, long_side_px=64, on_bad_image="skip")
    )
    loader = BatchLoader(dataset, EvaluationBatches(NUM_IMAGES, batch_size=4), workers=workers)
    batches = list(loader)
    assert [[s.image_index for s in batch.samples] for batch in batches] == [[0, 1, 3], [4, 6, 7]]
    bad = [record for batch in batches for record in batch.bad_images]
    assert [record.path for record in bad] == [str(records[2].path), str(records[5].path)]
    assert all(isinstance(record, BadImage) for record in bad)
    assert "10 × 10" in bad[1].reason


def test_evaluation_loaders_can_be_run_again(labels):
    dataset = PlainImages(labels.annotations.images, short_side_px=48, long_side_px=64)
    loader = BatchLoader(dataset, EvaluationBatches(NUM_IMAGES, batch_size=3), workers=1)
    for _ in range(2):
        assert [len(batch.samples) for batch in loader] == [3, 3, 2]


def test_missing_and_broken_masks_name_the_image(tmp_path):
    write_image(tmp_path / "1.png")
    for segmentation, words in (
        (..., r"1\.png: 1 of its 1 annotations have no mask"),
        ([[1, 2, 3, 4, 5, 6, 7]], r"1\.png: an annotation's segmentation"),
    ):
        path = write_coco(
            tmp_path / "labels.json", annotations=[annotation_entry(segmentation=segmentation)]
        )
        annotations = load_annotations(path).annotations
        dataset = LabelledImages(ClassSplit(("cat",)).keep_known(annotations), **PLAIN)
        with pytest.raises(UserError, match=words):
            dataset[0, 0]


def test_the_cache_keeps_images_while_they_fit_and_cannot_be_spoilt(labels):
    records = labels.annotations.images
    reader = ImageReader(cache_mb=1)
    first = reader.read(records[0])
    first.zero_()
    records[0].path.unlink()
    np.testing.assert_array_equal(reader.read(records[0]).permute(1, 2, 0).numpy(), gradient())
    reader.read(records[0]).zero_()
    assert reader.read(records[0]).any()


def test_a_full_cache_reads_from_disk(labels):
    records = labels.annotations.images
    reader = ImageReader(cache_mb=0)
    reader.read(records[0])
    records[0].path.unlink()
    with pytest.raises(UserError, match="cannot read"):
        reader.read(records[0])


def test_the_cache_serves_samples_that_need_no_resizing(labels):
    dataset = LabelledImages(labels, **PLAIN, cache_mb=8)
    batches = TrainingBatches(labels.annotations.images, batch_size=4, seed=0)
    loader = iter(BatchLoader(dataset, batches, workers=1))
    for _ in range(6):
        for sample in next(loader).samples:
            np.testing.assert_array_equal(sample.image.permute(1, 2, 0).numpy(), gradient())
            sample.image.zero_()


def found_square(image_index: int, x: int, y: int, side: int = 6) -> FoundObject:
    runs = np.zeros((48, 64), dtype=bool)
    runs[y : y + side, x : x + side] = True
    raw = msgspec.Raw(msgspec.json.encode(rle_to_json(encode_rle(runs))))
    return FoundObject(image_index, (x, y, x + side, y + side), 0.9, raw)


@pytest.mark.parametrize("flip", [0.0, 1.0])
@pytest.mark.parametrize("label", [WITHOUT_CLASS, 2])
def test_objects_nobody_labelled_follow_the_annotations(labels, flip: float, label: int):
    objects = UnlabelledObjects.of([found_square(2, 40, 30), found_square(2, 50, 10)])
    options: dict[str, Any] = PLAIN | {"variation": Variation((48,), 64, flip, "none")}
    dataset = LabelledImages(labels, **options, objects=dataclasses.replace(objects, label=label))
    plain = LabelledImages(labels, **options)
    before, sample = plain[2, 0], dataset[2, 0]
    assert isinstance(sample, Sample)
    assert isinstance(before, Sample)
    assert sample.labels.tolist() == [*before.labels.tolist(), label, label]
    assert torch.equal(sample.boxes_xyxy[: len(before.labels)], before.boxes_xyxy)
    assert sample.masks is not None
    for box, mask in zip(sample.boxes_xyxy[-2:], sample.masks[-2:], strict=True):
        rows, columns = mask.nonzero(as_tuple=True)
        extent = [columns.min(), rows.min(), columns.max() + 1, rows.max() + 1]
        assert box.tolist() == [int(side) for side in extent]
    left = sample.boxes_xyxy[-2:, 0].tolist()
    assert left == ([40, 50] if flip == 0 else [64 - 46, 64 - 56])
    elsewhere = dataset[3, 0]
    assert isinstance(elsewhere, Sample)
    assert label not in elsewhere.labels.tolist()
