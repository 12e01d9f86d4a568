"""Plans follow from facts alone."""

import json
from dataclasses import replace

import pytest

from rncdl.classes import ClassSplit
from rncdl.config import Settings
from rncdl.data.annotations import load_annotations
from rncdl.planning.expectation import expect
from rncdl.planning.facts import DataFacts, MachineFacts, data_facts
from rncdl.planning.plan import cut_batches, default_size, image_side_px, make_plan
from rncdl.planning.sizes import PAPER, SIZES, STANDARD, TINY
from rncdl.planning.trial import Trial
from rncdl.planning.words import in_words, label_warnings, next_commands, warnings_of

DATA = DataFacts(
    num_labelled=500,
    num_unlabelled=500,
    num_val=0,
    num_known=20,
    num_boxes=3000,
    has_masks=True,
    short_side_px=480,
    long_over_short=1.5,
    small_object=0.1,
    rarest_share=0.1,
)
LAPTOP = MachineFacts(
    device="cpu",
    is_gpu=False,
    num_gpus=0,
    num_cores=2,
    memory_bytes=8 * 10**9,
    disk_bytes=10**11,
    has_timm=True,
)
SERVER = replace(LAPTOP, device="A GPU", is_gpu=True, num_gpus=1, num_cores=16)
TRIAL = Trial(
    train_step_s=1.0,
    read_image_s=0.01,
    bank_image_s=0.1,
    discover_step_s=0.2,
    memory_bytes=10**9,
    accumulate=1,
)


def test_a_laptop_gets_a_tiny_run_and_a_gpu_a_standard_one():
    assert default_size(LAPTOP) is TINY
    assert default_size(SERVER) is STANDARD


@pytest.mark.parametrize("size", SIZES.values(), ids=SIZES)
@pytest.mark.parametrize("machine", [LAPTOP, SERVER], ids=["laptop", "server"])
def test_every_size_makes_settings_with_a_reason_for_each_choice(size, machine):
    plan = make_plan(DATA, machine, size)
    assert all(choice.reason for choice in plan.choices)
    for choice in plan.choices:
        group, _, name = choice.key.partition(".")
        assert getattr(getattr(plan.settings, group), name) == choice.value


def test_steps_follow_the_number_of_labelled_images_between_least_and_most():
    steps = [
        make_plan(replace(DATA, num_labelled=number), LAPTOP, TINY).settings.train.steps
        for number in (1, 500, 10**6)
    ]
    assert steps == [400, 1875, 2500]  # 30 epochs of 500 images, 8 at a time


def test_the_papers_size_leaves_the_papers_settings():
    settings = make_plan(DATA, SERVER, PAPER).settings
    assert settings.train == Settings().train
    assert settings.discover == Settings().discover
    assert settings.detector == Settings().detector


def test_what_the_user_said_stands_and_what_follows_from_it_follows():
    words = ["train.steps=60", "discover.heads=[7]", "detector.fpn_channels=48"]
    settings = make_plan(DATA, LAPTOP, TINY, words).settings
    assert settings.train.steps == 60
    assert settings.train.warmup_steps == 10
    assert settings.discover.heads == (7,)
    assert settings.detector.fpn_channels == 48


@pytest.mark.parametrize(
    ("small_object", "short_side_px", "expected"),
    [
        (0.5, 480, 128),  # large objects: the least
        (0.1, 480, 160),  # 16 px over 0.1
        (0.01, 480, 192),  # small ones: the most that the size takes
        (0.1, 140, 160),  # no larger than the images, but for rounding up
        (0.0, 480, 192),
    ],
)
def test_images_are_as_large_as_small_objects_need(small_object, short_side_px, expected):
    data = replace(DATA, small_object=small_object, short_side_px=short_side_px)
    assert image_side_px(data, TINY)[0] == expected


@pytest.mark.parametrize(("num_known", "expected"), [(1, 20), (20, 80), (400, 200)])
def test_clusters_follow_the_known_classes_as_far_as_the_size_allows(num_known, expected):
    plan = make_plan(replace(DATA, num_known=num_known), LAPTOP, TINY)
    assert plan.settings.discover.heads == (expected,)


def test_a_teacher_that_the_user_wants_comes_with_all_that_it_needs():
    settings = make_plan(DATA, LAPTOP, TINY, ["discover.teacher=a_network"]).settings
    assert settings.discover.teacher == "a_network"
    assert settings.teacher.crop_px == TINY.teacher_px
    assert settings.detector.localisation
    assert settings.predict.known == "discovered"


@pytest.mark.parametrize(("number", "known"), [(0, "discovered"), (5, "trained")])
def test_heads_that_learn_from_neighbours_leave_known_classes_to_the_detector(number, known):
    words = ["discover.teacher=a_network", f"discover.neighbours={number}"]
    settings = make_plan(DATA, LAPTOP, TINY, words).settings
    assert settings.discover.neighbours == number
    assert settings.detector.localisation
    assert settings.predict.known == known


@pytest.mark.parametrize("words", [[], ["discover.teacher=none"]])
def test_without_a_teacher_nothing_is_chosen_for_one(words):
    settings = make_plan(DATA, LAPTOP, TINY, words).settings
    assert settings.discover.teacher == "none"
    assert settings.predict.known == "trained"
    assert not settings.detector.localisation


def test_what_the_teacher_looks_at_takes_time_and_disk():
    def cost(*words: str) -> tuple[float, int]:
        settings = make_plan(DATA, LAPTOP, TINY, words).settings
        trial = replace(TRIAL, object_image_s=0.3 if words else 0.0)
        expected = expect(settings, DATA, LAPTOP, trial, num_weights=1000)
        return expected.bank_s, expected.disk_bytes

    assert cost("discover.teacher=a_network")[0] - cost()[0] == pytest.approx(1000 * 0.3)
    assert cost("discover.teacher=a_network")[1] > cost()[1]


def test_bad_images_are_passed_over_and_rare_classes_repeated():
    usual = make_plan(DATA, LAPTOP, TINY).settings.data
    assert usual.on_bad_image == "error"
    assert usual.repeat_threshold == Settings().data.repeat_threshold
    odd = replace(DATA, num_bad_images=1, rarest_share=0.001)
    for size in SIZES.values():
        assert make_plan(odd, LAPTOP, size).settings.data.on_bad_image == "skip"
    assert make_plan(odd, LAPTOP, TINY).settings.data.repeat_threshold == 0.1


def test_without_timm_there_is_another_backbone():
    plan = make_plan(DATA, replace(LAPTOP, has_timm=False), TINY)
    assert plan.settings.detector.backbone == "resnet18"


def test_batches_are_cut_where_the_trial_says_so():
    plan = make_plan(DATA, LAPTOP, TINY)
    assert cut_batches(plan, 1) is plan
    cut = cut_batches(plan, 4)
    assert cut.settings.train.accumulate == 4
    assert cut.choices[-1].key == "train.accumulate"


def test_time_is_steps_times_what_the_trial_took():
    settings = make_plan(DATA, LAPTOP, TINY).settings
    expected = expect(settings, DATA, LAPTOP, TRIAL, num_weights=10**6)
    assert expected.train_s == 1875
    assert expected.bank_s == pytest.approx(100)
    assert expected.discover_s == pytest.approx(0.2 * settings.discover.steps)
    assert expected.report_s == pytest.approx(5 + 12 * 0.1 + 960 * 0.01)  # 80 clusters of 12
    assert expected.memory_bytes > TRIAL.memory_bytes
    assert expected.disk_bytes > 5 * 4 * 10**6  # the detector, and two checkpoints with momentum


def test_validation_and_gpus_change_the_time():
    with_val = replace(DATA, num_val=100)
    settings = make_plan(with_val, LAPTOP, TINY).settings
    expected = expect(settings, with_val, LAPTOP, TRIAL, num_weights=1)
    assert expected.train_s == pytest.approx(1875 + 4 * 100 * 0.1)
    two = replace(SERVER, num_processes=2)
    assert expect(settings, DATA, two, TRIAL, num_weights=1).train_s == 1875 / 2


def test_a_hopeless_plan_is_warned_of_and_a_good_one_is_not():
    plan = make_plan(DATA, LAPTOP, TINY)
    expected = expect(plan.settings, DATA, LAPTOP, TRIAL, num_weights=1)
    assert warnings_of(plan, DATA, LAPTOP, expected) == []
    plan = make_plan(DATA, LAPTOP, PAPER)
    slow = replace(TRIAL, train_step_s=20.0)
    expected = expect(plan.settings, DATA, LAPTOP, slow, num_weights=1)
    (warning,) = warnings_of(plan, DATA, LAPTOP, expected)
    assert "about 42 days" in warning
    assert "--size standard or a GPU" in warning


def test_too_little_memory_and_no_unlabelled_images_are_warned_of():
    machine, data = replace(LAPTOP, memory_bytes=10**8), replace(DATA, num_unlabelled=0)
    plan = make_plan(data, machine, TINY)
    expected = expect(plan.settings, data, machine, TRIAL, num_weights=1)
    memory, pool = warnings_of(plan, data, machine, expected)
    assert "memory" in memory
    assert "--unlabelled" in pool


def test_rare_classes_and_tiny_boxes_are_warned_of():
    assert label_warnings(DATA, 192) == []
    rare = replace(DATA, rare_classes=tuple("abcdefg"))
    (warning,) = label_warnings(rare, 192)
    assert warning.startswith("3 examples or fewer of a, b, c, d, e and 2 more")
    (warning,) = label_warnings(replace(DATA, tiny_share=0.35), 192)
    assert warning.startswith("1,050 of 3,000 boxes are smaller than 3 px")
    assert label_warnings(replace(DATA, tiny_share=0.25), 192) == []
    assert len(label_warnings(replace(DATA, tiny_share=0.25, num_boxes=5000), 192)) == 1


def test_facts_count_rare_classes_and_tiny_boxes(tmp_path):
    boxes = [(1, [0, 0, 50, 50])] * 4 + [(2, [0, 0, 1, 1])] * 3
    labels = known_labels(tmp_path, boxes)
    facts = data_facts(labels, [], num_val=0)
    assert facts.rare_classes == ("b",)
    assert facts.tiny_share == pytest.approx(3 / 7)
    assert facts.num_boxes == 7


def known_labels(folder, boxes):
    """Annotations of classes a (1) and b (2) on one image of 100 by 100 px."""
    content = {
        "images": [{"id": 1, "file_name": "a.png", "height": 100, "width": 100}],
        "categories": [{"id": 1, "name": "a"}, {"id": 2, "name": "b"}],
        "annotations": [
            {"id": index, "image_id": 1, "category_id": category, "bbox": box}
            for index, (category, box) in enumerate(boxes)
        ],
    }
    (folder / "labels.json").write_text(json.dumps(content))
    annotations = load_annotations(folder / "labels.json").annotations
    return ClassSplit.from_labelled(annotations).keep_known(annotations)


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0, "1 s"),
        (40, "40 s"),
        (720, "12 min"),
        (12_000, "3 h 20 min"),
        (10_800, "3 h"),
        (41 * 86_400, "41 days"),
    ],
)
def test_times_are_said_as_people_say_them(seconds, words):
    assert in_words(seconds) == words


def test_the_next_discovery_looks_at_the_same_images():
    lines = next_commands("runs/mine", ["more/", "b.json"])
    assert "--unlabelled more/ --unlabelled b.json" in lines[-1]
