from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from tests.browser import start_chromium

if TYPE_CHECKING:
    from playwright.sync_api import Browser


@pytest.fixture(scope="session")
def browser() -> Iterator["Browser"]:
    """The system's chromium; tests that ask for it are skipped where it is missing."""
    with start_chromium() as started:
        yield started
