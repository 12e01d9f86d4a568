from pathlib import Path

import pytest
import yaml

from rncdl.config import (
    Settings,
    change,
    dump_settings,
    load_settings,
    preset_names,
    resolve_settings,
    setting_changes,
)
from rncdl.errors import UserError


def test_nothing_asked_gives_the_defaults():
    assert resolve_settings() == Settings()


def test_overrides_win_over_the_preset_and_the_preset_over_the_defaults(tmp_path):
    preset = tmp_path / "mine.yaml"
    preset.write_text("train: {batch_size: 4, rate: 0.5}\n")

    settings = resolve_settings(preset, ["train.batch_size=8", "discover.heads=[10,20]"])

    assert settings.train.batch_size == 8
    assert settings.train.rate == 0.5
    assert settings.train.momentum == Settings().train.momentum
    assert settings.discover.heads == (10, 20)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("train.batch_sise=8", "Did you mean 'train.batch_size'"),
        ("trian.batch_size=8", "Did you mean 'train"),
        ("train.batch_size=0", "train.batch_size = 0"),
        ("train.batch_size=many", "train.batch_size = 'many'"),
        ("train=8", "is a group"),
        ("train.batch_size", "key=value"),
        ("predict.nms=1.5", "predict.nms = 1.5"),
        ("train.rate=[", "not a YAML value"),
    ],
)
def test_bad_overrides_name_the_setting_and_the_fix(override, message):
    with pytest.raises(UserError, match=message.replace("[", r"\[")):
        resolve_settings(overrides=[override])


def test_a_change_keeps_the_rest():
    before = resolve_settings("shapes")
    after = change(before, seed=5, predict={"min_score": 0.25}, discover={"heads": [3, 4]})
    assert setting_changes(before, after) == {
        "seed": (0, 5),
        "predict.min_score": (1e-4, 0.25),
        "discover.heads": ([20], [3, 4]),
    }
    assert after.discover.heads == (3, 4)
    assert change(before) == before == resolve_settings("shapes")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"sed": 1}, "Did you mean 'seed'"),
        ({"train": {"batch_sise": 8}}, "Did you mean 'train.batch_size'"),
        ({"train": {"batch_size": 0}}, "train.batch_size = 0"),
        ({"train": 8}, "is a group"),
        ({"seed": "many"}, "seed = 'many'"),
    ],
)
def test_a_bad_change_is_refused_like_a_bad_override(changes, message):
    with pytest.raises(UserError, match=message):
        change(Settings(), **changes)


def test_an_unknown_preset_lists_the_known_ones():
    with pytest.raises(UserError, match="Did you mean 'shapes'"):
        resolve_settings("shpes")


@pytest.mark.parametrize("text", ["- 1\n", "train: [", "trian: {steps: 1}\n"])
def test_a_bad_preset_file_is_named(tmp_path, text):
    path = tmp_path / "bad.yaml"
    path.write_text(text)
    with pytest.raises(UserError, match=r"bad\.yaml"):
        resolve_settings(path)


def test_saved_settings_come_back_equal(tmp_path):
    settings = resolve_settings("shapes", ["detector.weights=some/file.pth", "seed=7"])
    path = tmp_path / "settings.yaml"
    path.write_text(dump_settings(settings))
    assert load_settings(path) == settings


@pytest.mark.parametrize("name", preset_names())
def test_presets_are_valid_and_hold_only_differences(name):
    resolve_settings(name)
    text = (Path(__file__).parent.parent / "rncdl" / "presets" / f"{name}.yaml").read_text()
    preset = yaml.safe_load(text)
    before = resolve_settings(preset.pop("based_on", None)).model_dump(mode="json")
    for group, values in preset.items():
        if not isinstance(values, dict):
            assert values != before[group]
            continue
        same = [key for key, value in values.items() if value == before[group][key]]
        assert not same, f"{name}: {group}.{same} are so already"


def test_a_file_may_build_on_a_preset(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text("based_on: shapes\ntrain: {steps: 77}\n")
    assert resolve_settings(path) == resolve_settings("shapes", ["train.steps=77"])
    path.write_text("based_on: shpes\n")
    with pytest.raises(UserError, match=r"mine\.yaml: based_on = 'shpes'.*Did you mean 'shapes'"):
        resolve_settings(path)
