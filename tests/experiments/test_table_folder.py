from pathlib import Path

import pytest

from rncdl.config import Settings, resolve_settings
from rncdl.errors import UserError
from rncdl.evaluation.outcomes import Outcome
from rncdl.experiments.table_folder import TableFolder, changed_settings, file_name


def test_equal_settings_differ_in_nothing():
    assert changed_settings(Settings(), Settings()) == []


def test_changed_settings_are_named_with_their_group():
    overrides = ["seed=3", "discover.heads=[5,9]", "discover.region_nms=0.8"]
    changed = resolve_settings(overrides=overrides)
    assert changed_settings(Settings(), changed) == [
        "seed=3",
        "discover.heads=[5, 9]",
        "discover.region_nms=0.8",
    ]


def test_file_names_of_different_keys_differ_and_hold_no_strange_letters():
    keys = ["heads=[5, 9]", "heads=[59]", "region_nms=0.8", "prior=uniform+alpha=0.5"]
    names = [file_name(key) for key in keys]
    assert names == ["heads=-5-9", "heads=-59", "region_nms=0.8", "prior=uniform+alpha=0.5"]


def test_finished_seeds_are_not_missing(tmp_path: Path):
    folder = TableFolder(tmp_path)
    assert folder.missing_seeds("a", [0, 1]) == [0, 1]
    Outcome("a", 1, 0.0, None, ()).save(folder.row_file("a", 1))
    assert folder.missing_seeds("a", [0, 1]) == [0]
    assert folder.missing_seeds("b", [0, 1]) == [0, 1]
    assert [one.seed for one in folder.outcomes("a", [0, 1])] == [1]


def test_a_table_goes_on_from_the_same_alone(tmp_path: Path):
    folder = TableFolder(tmp_path)
    assert folder.settings() is None
    folder.require_same(Settings(), {"val": "a.json"})
    folder.begin(Settings(), {"val": "a.json"})
    folder.require_same(Settings(), {"val": "a.json"})
    with pytest.raises(UserError, match=r"--name.*\n.*val: 'a.json', now 'b.json'"):
        folder.require_same(Settings(), {"val": "b.json"})
    with pytest.raises(UserError, match=r"discover\.alpha=0\.1"):
        folder.require_same(resolve_settings(overrides=["discover.alpha=0.1"]), {"val": "a.json"})
