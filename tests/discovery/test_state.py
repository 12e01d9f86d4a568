import itertools
from typing import Any

import pytest
import torch

from rncdl.config import DiscoverSettings
from rncdl.discovery.feeding import DiscoveryBatch
from rncdl.discovery.heads import DiscoveryHeads, KnownHead, NovelHead
from rncdl.discovery.state import DiscoveryState, fill_memories, first_state
from rncdl.errors import UserError
from rncdl.training.processes import Processes

ALONE = Processes(rank=0, count=1, device=torch.device("cpu"))


def make_state(**more: Any) -> DiscoveryState:
    heads = DiscoveryHeads(KnownHead(4, 2), [NovelHead(4, 3, hidden_width=8, projection_width=4)])
    settings = DiscoverSettings(batch_images=2, regions_per_image=3, memory_batches=2, **more)
    return first_state(heads, [], settings, ALONE)


def batch_of(num_regions: int) -> DiscoveryBatch:
    features = torch.ones(num_regions, 4)
    return DiscoveryBatch((features, features), torch.zeros(0, 4), torch.zeros(0, dtype=torch.long))


@pytest.mark.parametrize(
    ("taught", "capacity"),
    [({}, 12), ({"teacher": "a"}, 0), ({"teacher": "a", "neighbours": 3}, 12)],
)
def test_only_heads_that_teach_themselves_remember(taught: dict[str, Any], capacity: int):
    state = make_state(**taught)
    assert [memory.capacity for memory in state.memories] == [capacity] * 2


def test_memories_are_filled_past_batches_without_regions():
    state = make_state()
    fill_memories(state, itertools.cycle([batch_of(0), batch_of(5)]), ALONE)
    assert all(memory.is_full for memory in state.memories)
    assert state.num_fed == 6


def test_a_detector_that_finds_nothing_is_told_and_not_waited_for():
    with pytest.raises(UserError, match="no region in 100 batches"):
        fill_memories(make_state(), itertools.repeat(batch_of(0)), ALONE)
