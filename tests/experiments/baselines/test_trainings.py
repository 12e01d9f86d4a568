"""How the baselines train: stopped, resumed, in half precision, seldom waiting for the device."""

import os
import signal
from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torchvision.transforms.v2.functional import pil_to_tensor

from rncdl.detector.model import ImageBatch
from rncdl.experiments.baselines import fitting
from rncdl.experiments.baselines.methods import METHODS, BaselineTask
from rncdl.experiments.baselines.weng import triplet_loss
from rncdl.prediction.classifier import Classifier
from rncdl.training.checkpoints import list_checkpoints
from rncdl.training.interruption import Interrupted
from rncdl.training.saving import Saving
from tests.experiments.baselines.easy import BOXES, colour_features, draw_image, easy_task

TRAINED = [
    *((name, "crops") for name in ("kmeans-crops", "weng", "orca", "uno")),
    *((name, "bank") for name in ("orca", "uno")),
]
"""The baselines with networks of their own, by what they look at."""
QUICK = ("baselines.steps=5", "baselines.batch_images=4", "discover.checkpoint_every=2")


def task_of(folder: Path, features: str, *overrides: str) -> BaselineTask:
    chosen = (f"baselines.features={features}", *QUICK, *overrides)
    return easy_task(folder, num_clusters=3, overrides=chosen)


def classify_one_image(classifier: nn.Module, task: BaselineTask) -> Tensor:
    """(4, C): four regions of a blue image."""
    batch = task.detector.batch_images([pil_to_tensor(draw_image(2))])
    features = colour_features(2, 4, torch.Generator().manual_seed(7))
    with torch.inference_mode():
        return Classifier(classifier, names=(), num_known=2).probabilities(
            features, batch=batch, boxes=[BOXES]
        )


End = Callable[[], None]


def ask_to_stop() -> None:
    os.kill(os.getpid(), signal.SIGINT)


def break_off() -> None:
    raise KeyboardInterrupt


class Stops:
    """Ends trainings, each place once: after so many steps of the named one."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, places: dict[tuple[str, int], End]) -> None:
        self.left = dict(places)
        self._go_on = fitting.save_or_stop
        monkeypatch.setattr(fitting, "save_or_stop", self._save_or_stop)

    def _save_or_stop(self, step: int, saving: Saving, **rest: Any) -> None:
        assert saving.folder is not None
        self.left.pop((saving.folder.name, step), lambda: None)()
        self._go_on(step, saving, **rest)


@pytest.mark.parametrize(("name", "features"), TRAINED)
def test_a_stopped_training_goes_on_as_if_nothing_had_been(
    name: str, features: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Stopped on request, then broken off before the next checkpoint."""
    task = task_of(tmp_path, features)
    expected = METHODS[name](task).state_dict()
    resumable = replace(task, folder=tmp_path / "unfinished")
    places = {(name, 1): ask_to_stop, (name, 3): break_off}
    if (name, features) == ("uno", "crops"):
        # Its second training must also begin anew as it did, though the first one is not repeated.
        places = {
            ("uno-known-classes", 2): ask_to_stop,
            (name, 1): break_off,
            (name, 3): ask_to_stop,
        }
    stops = Stops(monkeypatch, places)
    for number, reason in enumerate(places.values()):
        torch.manual_seed(1000 + number)  # another process would not be in the same state either
        with pytest.raises(Interrupted if reason is ask_to_stop else KeyboardInterrupt):
            METHODS[name](resumable)
    assert not stops.left
    torch.manual_seed(2000)
    resumed = METHODS[name](resumable).state_dict()
    assert resumed.keys() == expected.keys()
    assert [key for key in expected if not torch.equal(expected[key], resumed[key])] == []
    assert list_checkpoints(tmp_path / "unfinished" / name)[-1].name == "step_00000005.pt"


@pytest.mark.parametrize(("name", "features"), TRAINED)
def test_half_precision_gives_finite_classifiers_in_float32(
    name: str, features: str, tmp_path: Path
):
    task = task_of(tmp_path, features, "train.precision=bfloat16")
    with _Operations() as seen:
        classifier = METHODS[name](task)
    assert seen.dtypes[torch.bfloat16]
    assert {p.dtype for p in classifier.parameters()} <= {torch.float32}
    with torch.autocast("cpu", torch.bfloat16):
        scores = classify_one_image(classifier, task)
    assert scores.dtype == torch.float32
    assert scores.isfinite().all()


@pytest.mark.parametrize(
    "name",
    ["kmeans-features", "kmeans-features-soft", "semi-supervised-kmeans", "pandas", "orca", "uno"],
)
def test_region_features_are_classified_in_float32_even_under_autocast(name: str, tmp_path: Path):
    """In bfloat16 two classes whose cosines differ by less than 0.4 % would tie."""
    task = task_of(tmp_path, "bank")
    classifier = METHODS[name](task)
    expected = classify_one_image(classifier, task)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(classify_one_image(classifier, task), expected)


class _Operations(TorchDispatchMode):
    """Counts what is computed, by name and by type of number."""

    def __init__(self) -> None:
        super().__init__()
        self.names: Counter[str] = Counter()
        self.dtypes: Counter[torch.dtype] = Counter()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        self.names[func.overloadpacket.__name__] += 1
        for value in result if isinstance(result, tuple | list) else [result]:
            if isinstance(value, Tensor):
                self.dtypes[value.dtype] += 1
        return result


def softmax_instead(logits: Tensor, *_: Any, **__: Any) -> SimpleNamespace:
    return SimpleNamespace(assignment=logits.softmax(1))


@pytest.mark.parametrize(("name", "features"), TRAINED)
def test_more_steps_do_not_wait_for_the_device_more_often(
    name: str, features: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Between two looks at the losses; the balanced assignment is looked after where it lives."""
    monkeypatch.setattr("rncdl.experiments.baselines.uno.accelerated_sinkhorn", softmax_instead)
    waits = []
    for steps in (2, 6):
        (tmp_path / str(steps)).mkdir()
        task = task_of(tmp_path / str(steps), features, f"baselines.steps={steps}")
        with _Operations() as seen:
            METHODS[name](task)
        waits.append(seen.names["_local_scalar_dense"])
    assert waits[0] == waits[1]


def test_no_network_or_loss_computes_in_float64(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Some devices do not have it. The balanced assignment is looked after where it lives."""
    monkeypatch.setattr("rncdl.experiments.baselines.uno.accelerated_sinkhorn", softmax_instead)
    task = task_of(tmp_path, "bank")
    vectors = torch.randn(5, 3).requires_grad_()
    with _Operations() as seen:
        for name in (
            "kmeans-features",
            "kmeans-features-soft",
            "semi-supervised-kmeans",
            "pandas",
            "orca",
            "uno",
        ):
            classify_one_image(METHODS[name](task), task)
        triplet_loss(vectors, vectors.flip(0), vectors).backward()
    assert seen.dtypes[torch.float32] > 0
    assert seen.dtypes[torch.float64] == 0


@pytest.mark.parametrize(
    ("name", "features"),
    [
        *TRAINED,
        *(
            (name, "bank")
            for name in (
                "kmeans-features",
                "kmeans-features-soft",
                "semi-supervised-kmeans",
                "pandas",
            )
        ),
    ],
)
def test_a_classifier_moves_as_a_whole(
    name: str, features: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """The meta device computes no numbers, but refuses to mix its tensors with the CPU's."""
    task = task_of(tmp_path, features, "baselines.steps=1")
    classifier = METHODS[name](task).to("meta")
    monkeypatch.setattr(torch, "autocast", lambda *_, **__: nullcontext())  # it has none
    batch = ImageBatch(torch.zeros(1, 3, 64, 64, device="meta"), [(64, 64)])
    with torch.inference_mode():
        scores = Classifier(classifier, names=(), num_known=2).probabilities(
            torch.zeros(4, 8, device="meta"), batch=batch, boxes=[BOXES.to("meta")]
        )
    assert scores.device.type == "meta"
    assert scores.shape == (4, 2 + 3)
