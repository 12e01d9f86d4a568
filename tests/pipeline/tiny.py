"""A world and a network so small that the whole pipeline runs in seconds."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from tempfile import TemporaryFile
from unittest.mock import patch

import pytest

from rncdl.__main__ import main
from rncdl.training.interruption import stop_request

REPOSITORY = Path(__file__).resolve().parents[2]
HANGS_S = 900
"""A process that has not ended by then never will, however busy the machine is."""

WORLD = [
    *("--classes", "6", "--known", "3", "--size", "64"),
    *("--labelled", "16", "--unlabelled", "12", "--val", "8"),
]

SETTINGS = [
    "device=cpu",
    "data.short_sides_px=[56,64]",
    "data.long_side_px=96",
    "data.eval_short_side_px=64",
    "data.workers=0",
    "detector.backbone=resnet18",
    "detector.weights=none",
    "detector.frozen_blocks=0",
    "detector.norm=batch",
    "detector.fpn_channels=16",
    "detector.anchor_sizes_px=[8,16,32,64,96]",
    "detector.rpn_samples=32",
    "detector.proposals_before_nms=50",
    "detector.proposals_after_nms=40",
    "detector.roi_samples=16",
    "detector.roi_reference_px=32",
    "detector.box_head_width=32",
    "detector.mask_head_width=8",
    "detector.mask_head_layers=1",
    "train.steps=6",
    "train.augmentation=weak",
    "train.batch_size=4",
    "train.rate=0.005",
    "train.warmup_steps=2",
    "train.schedule=cosine",
    "train.log_every=2",
    "train.checkpoint_every=2",
    "predict.proposals_before_nms=50",
    "predict.proposals_after_nms=40",
    "predict.max_detections=20",
    "discover.heads=[8]",
    "discover.steps=8",
    "discover.batch_images=4",
    "discover.labelled_images=4",
    "discover.warmup_steps=2",
    "discover.regions_per_image=10",
    "discover.matched_regions_per_image=12",
    "discover.views=3",
    "discover.memory_batches=3",
    "discover.hidden_width=24",
    "discover.projection_width=16",
    "discover.log_every=2",
    "discover.checkpoint_every=4",
]

WITH_OBJECTS = ["train.objects_at=0.5", "train.objects_min_score=0", "train.objects_per_image=2"]
"""Changes of the settings: a look for objects that nobody labelled, after the third step."""

WITH_MASK_STEPS = [*WITH_OBJECTS, "train.mask_steps=3", "detector.mask_detail=4"]
"""And one by the finished detector, from which its mask head learns on."""


TEACHER = ("discover.teacher=auto", "teacher.weights=none", "teacher.gate=0")
"""Without weights of others: the detector's own backbone. The masks of a detector that has hardly
learned agree with its boxes by chance alone."""


def environment() -> dict[str, str]:
    """Of a process that a test starts; as many threads as here, for sums depend on it."""
    return {**os.environ, "PYTHONPATH": str(REPOSITORY)}


def command(*words: object) -> list[str]:
    """The `rncdl` command line, for a process of its own."""
    return [sys.executable, "-m", "rncdl", *map(str, words)]


def run_rncdl(*words: object, processes: int = 1, code: int = 0) -> str:
    """What the command says on the screen; it must end with `code`.

    It runs in this process, which has loaded torch already, and starts others if it is to.
    """
    if processes > 1:
        words = ("--processes", processes, *words)
    with (
        patch.object(sys, "argv", ["rncdl", *map(str, words)]),
        patch.dict(os.environ, environment()),
        stop_request(),  # puts the signals' handlers back, which the command sets for its process
        _screen() as screen,
        pytest.raises(SystemExit) as left,
    ):
        main()
    assert left.value.code == code, screen.said
    return screen.said


class _Screen:
    said = ""


@contextmanager
def _screen() -> Iterator[_Screen]:
    """Notes what this process says, and what those say that it starts."""
    screen, outputs = _Screen(), (1, 2)
    with TemporaryFile("w+") as file:
        before = [os.dup(output) for output in outputs]
        for output in outputs:
            os.dup2(file.fileno(), output)
        try:
            with redirect_stdout(file), redirect_stderr(file):
                yield screen
        finally:
            for output, copy in zip(outputs, before, strict=True):
                os.dup2(copy, output)
                os.close(copy)
            file.seek(0)
            screen.said = file.read()


def run_killed(*words: object, after: str, times: int = 1) -> None:
    """Run the command in a process that is killed when the function `after` has returned."""
    script = Path(__file__).with_name("killed.py")
    _run([sys.executable, str(script), after, str(times), *map(str, words)], code=-signal.SIGKILL)


def wait_until(is_so: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    """Return when it is so; an error if the process, which is to bring it about, ends before."""
    give_up = time.monotonic() + HANGS_S
    while not is_so():
        assert process.poll() is None or is_so(), process.communicate()[0]
        assert time.monotonic() < give_up
        time.sleep(0.02)


def run_torchrun(*words: object) -> str:
    """What a script says that torchrun runs in two processes; it must end well."""
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    return _run([*launcher, *map(str, words)], code=0)


def _run(words: list[str], *, code: int) -> str:
    done = subprocess.run(
        words, capture_output=True, text=True, env=environment(), timeout=HANGS_S, check=False
    )
    said = done.stdout + done.stderr
    assert done.returncode == code, said
    return said
