from pathlib import Path

import pytest
import torch
from torch.nn import functional

from rncdl.discovery.bank import Bank, BankShape
from rncdl.discovery.extraction import ChosenRegions, ExtractedRegions
from rncdl.discovery.heads import DiscoveryHeads, KnownHead, NovelHead

NUM_IMAGES, NUM_FEATURES, NUM_KNOWN, NUM_CLUSTERS = 40, 6, 3, 5


@pytest.fixture
def heads() -> DiscoveryHeads:
    """Heads of 3 known classes and 5 clusters, all of which win some of the bank's regions.

    BatchNorm has seen features like them, and each prototype is what becomes of one of those.
    """
    torch.manual_seed(0)
    known = KnownHead.from_classifier(
        2 * torch.randn(NUM_KNOWN + 1, NUM_FEATURES), torch.randn(NUM_KNOWN + 1)
    )
    novel = NovelHead(NUM_FEATURES, NUM_CLUSTERS, hidden_width=8, projection_width=4)
    features = torch.randn(64, NUM_FEATURES)
    with torch.no_grad():
        novel.projection(features)
        novel.eval()
        novel.prototypes.copy_(functional.normalize(novel.projection(features[:NUM_CLUSTERS])))
    return DiscoveryHeads(known, [novel.train()])


@pytest.fixture
def bank(tmp_path: Path) -> Bank:
    """40 images of 0 to 9 regions; the fourth cannot be read, the sixth is not there yet."""
    shape = BankShape(NUM_IMAGES, 4, 2, 9, 1, NUM_FEATURES)
    Bank.create(tmp_path / "bank", shape, {})
    made = Bank(tmp_path / "bank", writable=True)
    generator = torch.Generator().manual_seed(0)
    for index in range(NUM_IMAGES):
        count = index % 10
        boxes = torch.rand(count, 4, generator=generator) * 20
        boxes[:, 2:] += boxes[:, :2] + 4
        chosen = ChosenRegions(
            boxes, torch.zeros(count), torch.zeros(0, 4), torch.zeros(0, dtype=torch.int64)
        )
        features = torch.randn(2, count, NUM_FEATURES, generator=generator)
        if index == 3:
            made.mark_unreadable(index)
        elif index != 5:
            made.write(index, ExtractedRegions(chosen, features, torch.zeros(2, 0, NUM_FEATURES)))
    return made
