"""Which settings of discovery contradict each other."""

from typing import Any

import pytest

from rncdl.config import DiscoverSettings, Settings
from rncdl.discovery.phase import require_possible, why_impossible
from rncdl.errors import UserError


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"neighbours": 5}, "discover.neighbours=5 needs a teacher"),
        ({"heads": "auto"}, "discover.heads=auto needs a teacher"),
        ({"teacher": "auto", "online": True}, "teaches from the bank"),
        ({"teacher": "auto", "neighbours": 5, "single_phase": True}, "teaches from the bank"),
    ],
)
def test_contradictions_are_told_with_a_way_out(settings: dict[str, Any], reason: str):
    discover = DiscoverSettings(**settings)
    assert reason in str(why_impossible(discover))
    with pytest.raises(UserError, match=reason):
        require_possible(Settings(discover=discover))


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"online": True},
        {"teacher": "auto", "heads": "auto"},
        {"teacher": "auto", "neighbours": 5, "heads": "auto"},
    ],
)
def test_what_is_possible_passes(settings: dict[str, Any]):
    require_possible(Settings(discover=DiscoverSettings(**settings)))
