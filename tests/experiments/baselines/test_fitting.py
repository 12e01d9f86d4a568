"""The loop itself, on a network of one layer."""

import os
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from rncdl.discovery.training import Diverged
from rncdl.experiments.baselines.fitting import Fitting, encode_jointly, fit
from rncdl.training.checkpoints import list_checkpoints
from rncdl.training.interruption import Interrupted

CPU = torch.device("cpu")
LINE = Fitting("line", CPU, steps=7, rate=0.001, log_every=3, checkpoint_every=3)


def numbered(start: int) -> Iterator[Tensor]:
    """Batches that tell their number, (8, 3)."""
    step = start
    while True:
        yield torch.randn(8, 3, generator=torch.Generator().manual_seed(step)) + step
        step += 1


def layer() -> nn.Linear:
    torch.manual_seed(0)
    return nn.Linear(3, 2)


def test_no_steps_leave_the_module_as_it_was_and_in_evaluation_mode():
    module = layer()
    fit(module, lambda batch: module(batch).sum(), numbered, replace(LINE, steps=0))
    assert torch.equal(module.weight, layer().weight)
    assert not module.training


def test_a_step_without_a_batch_is_passed_over():
    """The others keep their numbers, and so their batches and their rates."""
    seen: list[float] = []
    module = layer()

    def gaps(start: int) -> Iterator[Tensor | None]:
        for step, batch in enumerate(numbered(start), start):
            yield None if step in (0, 1, 2, 5) else batch

    def loss_of(batch: Tensor) -> Tensor:
        seen.append(batch.mean().round().item())
        return module(batch).square().mean()

    fit(module, loss_of, gaps, LINE)
    assert seen == [3, 4, 6]
    assert not torch.equal(module.weight, layer().weight)


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_a_loss_that_is_not_finite_is_told_with_its_step(bad: float, tmp_path: Path):
    """It is found when losses are next looked at, here after 6 steps."""
    taken = 0
    module = layer()

    def loss_of(batch: Tensor) -> Tensor:
        nonlocal taken
        taken += 1
        return module(batch).mean() * (bad if taken == 5 else 1)

    with pytest.raises(Diverged, match=r"line, step 5: the loss is not finite.*baselines\.rate"):
        fit(module, loss_of, numbered, replace(LINE, folder=tmp_path))
    assert taken == 6
    assert [path.name for path in list_checkpoints(tmp_path)] == ["step_00000003.pt"]


def test_a_loss_that_is_not_finite_is_found_at_the_end_too(tmp_path: Path):
    module = layer()
    with pytest.raises(Diverged, match="step 1:"):
        fit(module, lambda batch: module(batch).sum() * torch.nan, numbered,
            replace(LINE, folder=tmp_path, log_every=100, checkpoint_every=100))  # fmt: skip
    assert list_checkpoints(tmp_path) == []


@pytest.mark.parametrize("precision", [torch.float32, torch.bfloat16, torch.float16])
def test_a_stop_saves_and_what_follows_is_the_same_training(precision: torch.dtype, tmp_path: Path):
    """In float16 the scale of the gradients goes on too: steep as it is, it soon has to fall."""
    fitting = replace(LINE, precision=precision)

    def train(fitting: Fitting, *, stop_after: int | None = None) -> Tensor:
        module = layer()
        taken = 0

        def loss_of(batch: Tensor) -> Tensor:
            nonlocal taken
            taken += 1
            if taken == stop_after:
                os.kill(os.getpid(), signal.SIGTERM)
            (outputs,) = encode_jointly(module, batch - batch.mean(), precision=fitting.precision)
            return 4 * (outputs + 0.1 * torch.randn_like(outputs)).square().mean()

        fit(module, loss_of, numbered, fitting)
        return module.weight.detach()

    expected = train(fitting)
    resumable = replace(fitting, folder=tmp_path)
    with pytest.raises(Interrupted, match=r"step 4 of 7.*same command") as stop:
        train(resumable, stop_after=4)
    assert stop.value.exit_code == 128 + signal.SIGTERM
    assert list_checkpoints(tmp_path)[-1].name == "step_00000004.pt"
    assert torch.equal(train(resumable), expected)
    # Finished: there is nothing left to do, and the outcome is the same.
    assert torch.equal(train(resumable, stop_after=1), expected)


def test_all_parts_pass_the_encoder_at_once_and_come_out_as_float32():
    dtypes = []

    def encoder(values: Tensor) -> Tensor:
        product = values @ torch.eye(3)
        dtypes.append(product.dtype)
        return product

    first, second = encode_jointly(
        encoder, torch.ones(2, 3), torch.zeros(1, 3), precision=torch.bfloat16
    )
    assert dtypes == [torch.bfloat16]
    assert (first.dtype, first.tolist()) == (torch.float32, [[1.0] * 3] * 2)
    assert second.tolist() == [[0.0] * 3]
