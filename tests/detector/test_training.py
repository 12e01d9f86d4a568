"""The supervised step in one process and in two, some of which have nothing to learn from."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from PIL import Image
from torch import Tensor, nn

from rncdl.classes import ClassSplit
from rncdl.config import DetectorSettings, Settings, TrainSettings, resolve_settings
from rncdl.data.annotations import load_annotations
from rncdl.data.batches import TrainingBatches
from rncdl.data.samples import Sample, unlabelled_sample
from rncdl.detector.losses import SupervisedStep, supervised_losses
from rncdl.detector.model import Detector
from rncdl.detector.training import train_detector
from rncdl.detector.training_steps import accumulate_gradients, cut_batch
from rncdl.errors import UserError
from rncdl.run_folder import RunFolder
from rncdl.training.processes import Processes
from tests.detector.conftest import rectangle_sample
from tests.pipeline.tiny import SETTINGS
from tests.two_processes import run_in_two_processes

BOX = [8.0, 8.0, 40.0, 48.0]


def rank(number: int, count: int = 2) -> Processes:
    return Processes(rank=number, count=count, device=torch.device("cpu"))


class Summing(nn.Module):
    """A model whose loss is the sum of its images' first pixels over their number."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(()))
        self.passes: list[int] = []

    def forward(self, samples: list[Sample]) -> dict[str, Tensor]:
        self.passes.append(len(samples))
        pixels = torch.stack([sample.image[0, 0, 0].float() for sample in samples])
        return {"loss": self.weight * pixels.mean()}


def with_pixel(value: int) -> Sample:
    pixels = torch.full((3, 4, 4), value, dtype=torch.uint8)
    return unlabelled_sample(pixels, image_index=0, path="")


def gradient(samples: list[Sample], num_images: float, **train: Any) -> tuple[float, list[int]]:
    """A process's gradient, and the sizes of the batches its model was given."""
    model = Summing()
    losses = accumulate_gradients(
        model,
        cut_batch(samples, TrainSettings(**train), rank(0)),
        num_images=num_images,
        scaler=torch.amp.GradScaler("cpu", enabled=False),
        precision=torch.float32,
    )
    assert model.weight.grad is not None
    torch.testing.assert_close(losses["loss"], model.weight.grad)
    return model.weight.grad.item(), model.passes


@pytest.mark.parametrize("accumulate", [1, 2, 3, 4, 9])
def test_processes_take_as_many_passes_whatever_they_could_read(accumulate: int):
    """And the mean of their gradients is that of all images, each counting the same."""
    train = {"batch_size": 8, "accumulate": accumulate}
    values = [10, 20, 30, 40]
    for num_lost in range(5):
        both = [values, values[num_lost:]]
        num_images = sum(map(len, both)) / 2
        found = [gradient([with_pixel(v) for v in own], num_images, **train) for own in both]
        assert len(found[0][1]) == len(found[1][1]) <= accumulate
        assert all(size > 0 for _, passes in found for size in passes)
        expected = sum(map(sum, both)) / sum(map(len, both))
        assert sum(g for g, _ in found) / 2 == pytest.approx(expected)


def test_a_full_batch_is_cut_as_evenly_as_it_can_be():
    samples = [with_pixel(v) for v in range(5)]
    parts = cut_batch(samples, TrainSettings(batch_size=10, accumulate=2), rank(1))
    assert [len(part) for part in parts] == [3, 2]


def test_the_mask_head_is_passed_even_where_nothing_teaches_it(tiny_settings: DetectorSettings):
    """So that no process waits in it for another; but what passes counts for nothing."""
    detector = Detector(tiny_settings, 3, masks=True)
    assert detector.mask_head is not None
    passes = []
    detector.mask_head.register_forward_hook(lambda *_: passes.append(1))
    empty = rectangle_sample([], [])
    boxes_only = rectangle_sample([BOX], [0])
    boxes_only.masks = None
    for samples in ([rectangle_sample([BOX], [0])], [empty], [boxes_only], [empty, boxes_only]):
        passes.clear()
        losses = supervised_losses(detector, samples)
        assert len(passes) == 1
    detector.zero_grad()
    losses["mask"].backward()
    gradients = [p.grad for p in detector.mask_head.parameters()]
    assert all(g is not None and not g.any() for g in gradients)


class MeetingNorm(nn.Module):
    """Stands for SyncBatchNorm, which runs on GPUs only: every pass waits for all processes."""

    def forward(self, x: Tensor) -> Tensor:
        total = x.detach().abs().sum() / x.numel()
        dist.all_reduce(total)
        return x / (1 + total)


def with_meeting_norms(module: nn.Module) -> nn.Module:
    for name, child in module.named_children():
        if isinstance(child, nn.BatchNorm2d):
            setattr(module, name, MeetingNorm())
        else:
            with_meeting_norms(child)
    return module


def settings_of(folder: Path) -> Settings:
    overrides = ["train.accumulate=2", "data.on_bad_image=skip"]
    return resolve_settings(overrides=[*SETTINGS, *overrides, "train.steps=2", "train.log_every=1"])


def labels_in(folder: Path) -> Any:
    annotations = load_annotations(folder / "labelled.json").annotations
    return ClassSplit.from_labelled(annotations).keep_known(annotations)


def shares_of(folder: Path, number: int) -> Iterator[list[int]]:
    """Which images a process is given, step by step."""
    settings = settings_of(folder)
    batches = TrainingBatches(
        labels_in(folder).annotations.images,
        batch_size=settings.train.batch_size,
        seed=settings.seed,
        processes=Processes(number, 2, torch.device("cpu")),
    )
    return ([index for index, _ in batch] for batch in batches)


def draw_images(folder: Path, num_images: int) -> None:
    """Images of one rectangle each, with boxes and masks."""
    images, annotations = [], []
    for number in range(num_images):
        x, y = 4 + number, 6
        pixels = np.zeros((64, 64, 3), dtype=np.uint8)
        pixels[y : y + 40, x : x + 30] = 200
        Image.fromarray(pixels).save(folder / f"{number}.png")
        images.append({"id": number, "file_name": f"{number}.png", "height": 64, "width": 64})
        corners = [x, y, x + 30, y, x + 30, y + 40, x, y + 40]
        annotations.append(
            {"id": number, "image_id": number, "category_id": 1, "bbox": [x, y, 30, 40],
             "area": 1200, "iscrowd": 0, "segmentation": [corners]}
        )  # fmt: skip
    categories = [{"id": 1, "name": "thing"}]
    content = {"images": images, "annotations": annotations, "categories": categories}
    (folder / "labelled.json").write_text(json.dumps(content))


def train_apart(processes: Processes, folder: Path) -> dict[str, Any]:
    """Losses of a process without masks; then a training in which it loses its images."""
    settings = settings_of(folder)
    torch.manual_seed(0)
    detector = Detector(settings.detector, 1, masks=True)
    with_meeting_norms(detector)
    model = processes.wrap(SupervisedStep(detector))
    sample = rectangle_sample([BOX], [0]) if processes.is_main else rectangle_sample([], [])
    torch.stack(list(model([sample]).values())).sum().backward()

    said = "no error"
    run = RunFolder(folder / "run")
    labels = labels_in(folder)
    train_detector(detector, labels, settings=settings, run=run, processes=processes)
    weights = torch.cat([p.detach().flatten() for p in detector.parameters()])
    for path in folder.glob("*.png"):
        path.unlink(missing_ok=True)
    try:
        more = RunFolder(folder / "more")
        train_detector(detector, labels, settings=settings, run=more, processes=processes)
    except UserError as error:
        said = str(error)
    return {"weights": weights, "said": said}


def test_a_process_that_has_nothing_keeps_none_waiting(tmp_path: Path):
    """No mask, half of its images, none of them; where no process can read any, all say so."""
    draw_images(tmp_path, 8)
    first, second = [own for own, _ in zip(shares_of(tmp_path, 1), range(2), strict=False)]
    lost = {*first, second[0]}
    for index in lost:
        (tmp_path / f"{index}.png").unlink()

    returned = run_in_two_processes(train_apart, tmp_path, tmp_path)

    assert torch.equal(returned[0]["weights"], returned[1]["weights"])
    assert returned[0]["weights"].isfinite().all()
    lines = (tmp_path / "run" / "skipped_images.jsonl").read_text().splitlines()
    assert {Path(json.loads(line)["path"]).name for line in lines} == {f"{i}.png" for i in lost}
    for one in returned:
        assert "None of a whole batch's images can be read" in one["said"]
