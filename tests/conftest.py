"""What all tests share: nothing that a clock, the number of cores or the order could change."""

import os
import random
import signal
from collections.abc import Iterator
from typing import TYPE_CHECKING

# One thread per process, also in those that tests start: they share the machine, and sums come out
# differently for another number of threads. To be set before torch is loaded.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest
import torch
from hypothesis import HealthCheck, settings

from rncdl.training.interruption import STOP_SIGNALS
from tests.browser import start_chromium

if TYPE_CHECKING:
    from playwright.sync_api import Browser

settings.register_profile(
    "anywhere", deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True
)
settings.load_profile("anywhere")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--random-order",
        type=int,
        metavar="SEED",
        help="run the modules, and the tests of each, in an order drawn by this seed",
    )


def pytest_configure() -> None:
    """Heed the signals that tests send: `nohup` and jobs in the background have some ignored."""
    for number in STOP_SIGNALS:
        if signal.getsignal(number) is signal.SIG_IGN:
            is_ctrl_c = number == signal.SIGINT
            signal.signal(number, signal.default_int_handler if is_ctrl_c else signal.SIG_DFL)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Shuffles if asked to; module by module, or modules would make their fixtures many times."""
    seed = config.getoption("--random-order")
    if seed is None:
        return
    draw = random.Random(seed)
    modules: dict[str, list[pytest.Item]] = {}
    for item in items:
        modules.setdefault(item.nodeid.partition("::")[0], []).append(item)
    groups = list(modules.values())
    draw.shuffle(groups)
    for group in groups:
        draw.shuffle(group)
    items[:] = [item for group in groups for item in group]


@pytest.fixture(autouse=True)
def same_start() -> None:
    """Every test draws the same numbers, whatever ran before it."""
    torch.manual_seed(0)


@pytest.fixture(scope="session")
def browser() -> Iterator["Browser"]:
    """The system's chromium; tests that ask for it are skipped where it is missing."""
    with start_chromium() as started:
        yield started
