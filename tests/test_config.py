from pathlib import Path

import pytest
import yaml

from rncdl import config
from rncdl.config import (
    RETIRED,
    Settings,
    as_overrides,
    change,
    dump_settings,
    load_settings,
    preset_names,
    resolve_settings,
    setting_changes,
)
from rncdl.detector import losses
from rncdl.detector.model import SIZE_DIVISOR_PX
from rncdl.discovery.heads import TEMPERATURE
from rncdl.discovery.prior import LOG_MEAN
from rncdl.discovery.state import WEIGHT_DECAY
from rncdl.discovery.step import SHARE_TOLERANCE
from rncdl.errors import UserError
from rncdl.training.checkpoints import KEPT
from rncdl.training.optimizer import MOMENTUM


def test_nothing_asked_gives_the_defaults():
    assert resolve_settings() == Settings()


def test_overrides_win_over_the_preset_and_the_preset_over_the_defaults(tmp_path):
    preset = tmp_path / "mine.yaml"
    preset.write_text("train: {batch_size: 4, rate: 0.5}\n")

    settings = resolve_settings(preset, ["train.batch_size=8", "discover.heads=[10,20]"])

    assert settings.train.batch_size == 8
    assert settings.train.rate == 0.5
    assert settings.train.weight_decay == Settings().train.weight_decay
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


def test_no_changes_are_no_overrides():
    assert as_overrides({}) == as_overrides(()) == []


@pytest.mark.parametrize(
    "changes",
    [
        {"train.rate": 1e-5, "discover.heads": [7, 9], "seed": 3},
        {"train": {"rate": 1e-5}, "discover": {"heads": (7, 9)}, "seed": 3},
        ["train.rate=0.00001", "discover.heads=[7,9]", "seed=3"],
    ],
)
def test_settings_by_name_in_groups_and_in_words_are_the_same(changes):
    settings = resolve_settings(overrides=as_overrides(changes))
    expected = change(Settings(), train={"rate": 1e-5}, discover={"heads": [7, 9]}, seed=3)
    assert settings == expected


@pytest.mark.parametrize("value", ["none", Path("with space/true: 1.pt"), Path("3")])
def test_texts_and_paths_come_through_as_they_are(value):
    settings = resolve_settings(overrides=as_overrides({"detector.weights": value}))
    assert settings.detector.weights == value


def test_a_value_that_is_no_plain_one_is_told_of():
    with pytest.raises(UserError, match=r"'seed': <object.*give a plain Python value"):
        as_overrides({"seed": object()})


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


@pytest.fixture
def warnings(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is said, also of what was said before."""
    said: list[str] = []
    config._warn_once.cache_clear()
    monkeypatch.setattr(config, "warn", said.append)
    return said


def test_files_of_earlier_versions_are_read(tmp_path: Path, warnings: list[str]):
    """As they were written: with every setting of then, retired ones at the value now fixed."""
    settings = resolve_settings("shapes", ["seed=7"])
    values = settings.model_dump(mode="json")
    for key, value in RETIRED.items():
        group, name = key.split(".")
        values[group][name] = value
    path = tmp_path / "settings.yaml"
    path.write_text(yaml.safe_dump(values))
    assert load_settings(path) == load_settings(path) == settings
    (said,) = warnings
    assert said.startswith(f"{path}: no longer settings")
    assert all(key in said for key in RETIRED)


def test_a_retired_setting_with_another_value_is_told_of(tmp_path: Path, warnings: list[str]):
    path = tmp_path / "mine.yaml"
    path.write_text("train: {momentum: 0.5, steps: 3}\n")
    settings = resolve_settings(path, ["discover.prior_mean=2"])
    assert settings == resolve_settings(overrides=["train.steps=3"])
    assert [line.partition(" has no effect")[0] for line in warnings] == [
        f"{path}: train.momentum = 0.5",
        "discover.prior_mean=2: discover.prior_mean = 2",
    ]
    assert [line.endswith(f"{value} is used instead.")
            for line, value in zip(warnings, (0.9, 1.0), strict=True)] == [True, True]  # fmt: skip


def test_retired_settings_are_settings_no_longer_and_hold_as_they_are_said_to():
    names = {f"{group}.{name}" for group, values in Settings().model_dump().items()
             if isinstance(values, dict) for name in values}  # fmt: skip
    assert not names & RETIRED.keys()
    constants = {
        "detector.proposal_nms": losses.PROPOSAL_NMS,
        "detector.roi_positive_iou": losses.ROI_POSITIVE_IOU,
        "detector.rpn_negative_iou": losses.RPN_NEGATIVE_IOU,
        "detector.rpn_positive_iou": losses.RPN_POSITIVE_IOU,
        "detector.rpn_positive_share": losses.RPN_POSITIVE_SHARE,
        "detector.size_divisor": SIZE_DIVISOR_PX,
        "train.keep_checkpoints": KEPT,
        "train.momentum": MOMENTUM,
        "discover.keep_checkpoints": KEPT,
        "discover.momentum": MOMENTUM,
        "discover.prior_mean": LOG_MEAN,
        "discover.share_tolerance": SHARE_TOLERANCE,
        "discover.temperature": TEMPERATURE,
        "discover.weight_decay": WEIGHT_DECAY,
    }
    assert {key: RETIRED[key] for key in constants} == constants


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
