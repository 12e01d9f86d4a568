"""The small bank and the heads that the gallery is tested with, and a page of them."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from rncdl.discovery.bank import Bank
from rncdl.discovery.heads import DiscoveryHeads
from tests.browser import Watched, open_address
from tests.gallery.conftest import bank, heads
from tests.naming.served import Site, serve

if TYPE_CHECKING:
    from playwright.sync_api import Browser

__all__ = ["bank", "heads"]


@pytest.fixture
def site(tmp_path: Path, bank: Bank, heads: DiscoveryHeads) -> Iterator[Site]:
    with serve(tmp_path, bank, heads) as served:
        yield served


@pytest.fixture
def opened(browser: "Browser", site: Site) -> Iterator[Watched]:
    with open_address(browser, site.address) as watched:
        watched.page.wait_for_selector("#cards .card")
        yield watched
        assert watched.complaints == []
