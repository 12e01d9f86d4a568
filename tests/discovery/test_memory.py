import pytest
import torch

from rncdl.discovery.memory import FeatureMemory


def rows(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float32)[:, None].expand(-1, 2).clone()


def held(memory: FeatureMemory) -> list[float]:
    return sorted(memory.features()[:, 0].tolist())


def test_a_new_memory_serves_no_rows():
    memory = FeatureMemory(3, 2)
    assert memory.features().shape == (0, 2)
    assert len(memory) == 0
    assert not memory.is_full


def test_no_capacity_is_full_and_stays_empty():
    memory = FeatureMemory(0, 2)
    memory.push(rows(1, 2))
    assert memory.is_full
    assert memory.features().shape == (0, 2)


def test_only_pushed_rows_are_served_until_it_is_full():
    memory = FeatureMemory(4, 2)
    memory.push(rows(1, 2, 3))
    assert held(memory) == [1, 2, 3]
    assert not memory.is_full
    memory.push(rows(4))
    assert memory.is_full


def test_the_oldest_rows_leave_first():
    memory = FeatureMemory(4, 2)
    for value in range(10):
        memory.push(rows(2 * value, 2 * value + 1, 100 + value)[:2])
        newest = range(max(0, 2 * value - 2), 2 * value + 2)
        assert held(memory) == list(newest)


@pytest.mark.parametrize("before", [0, 1, 2, 3])
def test_a_push_beyond_the_capacity_keeps_the_newest(before):
    memory = FeatureMemory(3, 2)
    memory.push(rows(*range(100, 100 + before)))
    memory.push(rows(1, 2, 3, 4, 5))
    assert held(memory) == [3, 4, 5]
    memory.push(rows(6))
    assert held(memory) == [4, 5, 6]


def test_an_empty_push_changes_nothing():
    memory = FeatureMemory(3, 2)
    memory.push(rows(1))
    memory.push(torch.empty(0, 2))
    assert held(memory) == [1]


def test_the_memory_keeps_copies_without_gradients():
    features = rows(1, 2).requires_grad_()
    memory = FeatureMemory(3, 2)
    memory.push(features)
    with torch.no_grad():
        features.zero_()
    assert held(memory) == [1, 2]
    assert not memory.features().requires_grad


@pytest.mark.parametrize("pushed", [0, 2, 3, 5])
def test_a_restored_memory_goes_on_exactly(pushed):
    memory, restored = FeatureMemory(3, 2), FeatureMemory(3, 2)
    for value in range(pushed):
        memory.push(rows(value))
    state = memory.state_dict()
    memory.push(rows(50))
    restored.load_state_dict(state)
    restored.push(rows(50))
    assert torch.equal(restored.features(), memory.features())


def test_a_state_that_does_not_fit_is_refused():
    memory = FeatureMemory(3, 2)
    memory.push(rows(1, 2, 3))
    for other in (FeatureMemory(2, 2), FeatureMemory(3, 4), FeatureMemory(5, 2)):
        if other.capacity == 5:
            memory.push(rows(4))  # the ring has turned: its next row fits only this capacity
        with pytest.raises(ValueError, match="do not fit"):
            other.load_state_dict(memory.state_dict())
