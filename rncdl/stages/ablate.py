"""`rncdl ablate`: the paper's ablation tables, row by row."""

from collections.abc import Sequence
from functools import partial

from rncdl.config import DiscoverSettings, Settings, change
from rncdl.discovery.bank import Bank
from rncdl.discovery.phase import needs_online, why_impossible
from rncdl.evaluation.comparison import Comparison, Line
from rncdl.experiments.ablations import AblationRow, AblationTable, ablation_tables
from rncdl.experiments.published import RNCDL_KEY, SOURCE
from rncdl.experiments.running import (
    Configuration,
    Trained,
    run_configurations,
    train_discovery,
)
from rncdl.experiments.setup import Setup, TableRequest, open_setup
from rncdl.experiments.table_folder import TableFolder, changed_settings
from rncdl.experiments.tables import parse_names, parse_numbers, write_tables
from rncdl.run_folder import RunFolder

TABLE_NAMES = tuple(ablation_tables(num_clusters=1, regions_per_image=1, memory_batches=1))


def ablate(
    request: TableRequest, *, name: str, tables: str, seeds: str, clusters: str | None
) -> None:
    """Train and measure every row of the chosen tables; those that occur twice once."""
    chosen = parse_names(tables, TABLE_NAMES, option="--table")
    numbers = parse_numbers(seeds, option="--seeds", least=0)
    sizes = None if clusters is None else parse_numbers(clusters, option="--clusters", least=1)
    folder = TableFolder(RunFolder(request.run).table_dir("ablate", name))
    with open_setup(request, folder) as setup:
        base = _with_one_head(setup.settings)
        wanted = {table: _tables_of(base.discover, sizes)[table] for table in chosen}
        rows = [
            row for table in wanted.values() for row in table.rows if left_out(base, row) is None
        ]
        settings_of = {settings_key(base, row): _settings_of(base, row) for row in rows}
        titles = {settings_key(base, row): row.title for row in rows} | {RNCDL_KEY: "RNCDL"}
        most_regions = max(one.discover.regions_per_image for one in settings_of.values())
        configurations = [
            Configuration(key, titles[key], numbers, partial(_train, key, settings, most_regions))
            for key, settings in settings_of.items()
        ]
        run_configurations(configurations, setup)
        if not setup.processes.is_main:
            return
    outcomes = {key: folder.outcomes(key, numbers) for key in settings_of}
    comparisons = [
        Comparison(table, found.title, _lines(base, found), outcomes, SOURCE)
        for table, found in wanted.items()
    ]
    write_tables(folder, comparisons, heading=f"{request.run.resolve().name}: ablations")


def _tables_of(
    discover: DiscoverSettings, clusters: Sequence[int] | None
) -> dict[str, AblationTable]:
    return ablation_tables(
        num_clusters=discover.heads[0],
        regions_per_image=discover.regions_per_image,
        memory_batches=discover.memory_batches,
        clusters=clusters,
    )


def _with_one_head(settings: Settings) -> Settings:
    return change(settings, discover={"heads": settings.discover.heads[:1]})


def _settings_of(base: Settings, row: AblationRow) -> Settings:
    return change(base, discover=row.changes)


def settings_key(base: Settings, row: AblationRow) -> str:
    """A name for what a row changes; rows of different tables that change the same share it."""
    changed = changed_settings(base, _settings_of(base, row))
    return "+".join(change.removeprefix("discover.") for change in changed) or RNCDL_KEY


def _lines(base: Settings, table: AblationTable) -> list[Line]:
    return [
        Line(row.title, settings_key(base, row), row.head, row.published, left_out(base, row))
        for row in table.rows
    ]


def left_out(base: Settings, row: AblationRow) -> str | None:
    """Why a row is not made: this command cannot, or its change contradicts the run's settings."""
    return row.left_out or why_impossible(_settings_of(base, row).discover)


def _train(key: str, settings: Settings, most_regions: int, setup: Setup, seed: int) -> Trained:
    seeded = change(settings, seed=seed)
    online = needs_online(settings.discover)
    bank = None if online else _bank_for(setup, settings, most_regions)
    return train_discovery(setup, key, seeded, bank=bank)


def _bank_for(setup: Setup, settings: Settings, most_regions: int) -> Bank:
    """The bank a row reads.

    The best few regions of an image come first in a bank, so rows with fewer regions read the
    run's own, and rows with more share one that has the most.
    """
    own, wanted = setup.settings.discover, settings.discover
    if wanted.region_nms == own.region_nms:
        if wanted.regions_per_image <= own.regions_per_image:
            return setup.bank()
        most = change(setup.settings, discover={"regions_per_image": most_regions})
        return setup.bank(f"regions_{most_regions}", most)
    nms = "null" if wanted.region_nms is None else str(wanted.region_nms)
    other = change(setup.settings, discover={"region_nms": wanted.region_nms})
    return setup.bank(f"nms_{nms}", other)
