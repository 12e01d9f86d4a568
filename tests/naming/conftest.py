"""The small bank and the heads that the gallery is tested with, and a page of them."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from rncdl.discovery.bank import Bank
from rncdl.discovery.heads import DiscoveryHeads
from tests.gallery.conftest import bank, heads
from tests.naming.served import Site, serve

__all__ = ["bank", "heads"]


@pytest.fixture
def site(tmp_path: Path, bank: Bank, heads: DiscoveryHeads) -> Iterator[Site]:
    with serve(tmp_path, bank, heads) as served:
        yield served
