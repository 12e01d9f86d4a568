"""Which rows of the tables are made."""

import pytest

from rncdl.config import Settings, change
from rncdl.experiments.ablations import ablation_tables
from rncdl.stages.ablate import left_out

ONLINE = {"single phase", "nothing frozen", "RoI heads free"}
NEVER = {"without MoCo pretraining"}


@pytest.mark.parametrize(
    ("discover", "expected"),
    [
        ({}, NEVER),
        ({"teacher": "auto"}, NEVER | ONLINE),
        ({"teacher": "auto", "neighbours": 5}, NEVER | ONLINE),
    ],
)
def test_rows_without_a_bank_are_not_made_with_a_teacher(
    discover: dict[str, object], expected: set[str]
):
    """It would not be asked, and their figures be those of another system."""
    base = change(Settings(), discover=discover)
    tables = ablation_tables(num_clusters=9, regions_per_image=9, memory_batches=9)
    rows = [row for table in tables.values() for row in table.rows]
    assert {row.title for row in rows if left_out(base, row)} == expected
