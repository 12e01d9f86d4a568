"""The pretended GPU itself: what it refuses, what it counts, and that its numbers are right."""

import pytest
import torch
from torch import nn

from tests.pretend_gpu import GPU, PretendTensor, pretend_gpu


def test_tensors_made_or_moved_there_say_so():
    with pretend_gpu():
        made = [
            torch.zeros(2, device=GPU),
            torch.tensor([1.0], device=GPU),
            torch.ones(3).to(GPU),
            torch.ones(3).to(GPU).new_tensor([2.0]),
            torch.arange(4, device=GPU)[1:].clone(),
            torch.randn(2, 3).to(GPU) @ torch.randn(3, 2).to(GPU),
        ]
        assert all(isinstance(one, PretendTensor) for one in made)
        assert all(one.device == GPU and one.is_cuda for one in made)
        assert not isinstance(made[0].cpu(), PretendTensor)


@pytest.mark.parametrize(
    "mix",
    [
        lambda gpu, cpu: gpu + cpu,
        lambda gpu, cpu: torch.cat([gpu, cpu]),
        lambda gpu, cpu: cpu[gpu.long()],
        lambda gpu, cpu: nn.functional.linear(gpu, torch.ones(1, 3)),
    ],
    ids=["sum", "cat", "GPU indices of a CPU tensor", "weights left behind"],
)
def test_tensors_of_both_devices_do_not_meet(mix):
    with pretend_gpu(), pytest.raises(RuntimeError, match="same device"):
        mix(torch.ones(3).to(GPU), torch.ones(3))


def test_what_a_real_gpu_allows_is_allowed():
    with pretend_gpu():
        gpu = torch.ones(3).to(GPU)
        assert (gpu * torch.tensor(2.0)).sum().item() == 6  # a number from the host
        assert gpu[torch.tensor([0, 2])].shape == (2,)  # indices from the host
        gpu[:2] = torch.zeros(2)
        assert gpu.tolist() == [0, 0, 1]


def test_numpy_and_generators_of_the_cpu_are_refused():
    with pretend_gpu():
        with pytest.raises(TypeError, match="numpy"):
            torch.ones(3).to(GPU).numpy()
        with pytest.raises(RuntimeError, match="generator"):
            torch.rand(3, device=GPU, generator=torch.Generator())


def test_waits_are_counted():
    with pretend_gpu() as waits:
        values = torch.arange(4.0).to(GPU)
        doubled = values * 2
        assert waits.num_asked == 0
        if doubled.sum() > 1:
            doubled.cpu()
        doubled.tolist()
        assert waits.num_asked == 3
        assert len(values[values > 1]) == 2
        assert waits.shapes.total() == 1


def test_learning_there_is_learning_here():
    """Forward, backward, momentum and BatchNorm's statistics."""

    def learn(device: torch.device) -> dict[str, torch.Tensor]:
        torch.manual_seed(0)
        model = nn.Sequential(
            nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(inplace=True), nn.Flatten()
        ).to(device)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        for step in range(3):
            pixels = torch.randn(2, 3, 6, 6, generator=torch.Generator().manual_seed(step))
            loss = model(pixels.to(device)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        return {name: value.cpu() for name, value in model.state_dict().items()}

    here = learn(torch.device("cpu"))
    with pretend_gpu():
        there = learn(GPU)
    for name, value in here.items():
        torch.testing.assert_close(there[name], value)


def test_nothing_is_left_of_it():
    with pretend_gpu():
        pass
    assert torch.ones(2).to("cpu").device.type == "cpu"
    with torch.inference_mode():
        assert torch.ones(2).is_inference()
