import numpy as np
import pytest
import torch

from rncdl.naming.accepting import (
    Accepted,
    NewLabel,
    Origin,
    PlacedRegion,
    Surroundings,
    accepted_classes,
    choose_labels,
    class_name,
    given_name,
    keep_best,
    keep_frequent,
)
from rncdl.naming.decisions import NOT_AN_OBJECT, Decisions
from rncdl.prediction.classifier import Classifier, output_names
from rncdl.regions import Regions

ACCEPTED = Accepted(("car", "dog", "cup", "novel_0003"), 2, frozenset({2}))
CAR, DOG, CUP, UNNAMED = range(4)
NOTHING = np.zeros((0, 4))
LEFT, MIDDLE, RIGHT = (0, 0, 10, 10), (20, 0, 30, 10), (40, 0, 50, 10)


def regions(*found: tuple[tuple[int, int, int, int], int, float]) -> Regions:
    """Of boxes, labels and scores, the best first."""
    boxes, labels, scores = zip(*found, strict=True) if found else ((), (), ())
    return Regions(
        torch.tensor(boxes, dtype=torch.float32).reshape(-1, 4),
        scores=torch.tensor(scores),
        labels=torch.tensor(labels, dtype=torch.int64),
        rles=[{"size": [10, 50], "counts": str(row).encode()} for row in range(len(found))],
    )


def unlabelled(*placed: PlacedRegion) -> Surroundings:
    return Surroundings(is_labelled=False, annotated_xyxy=NOTHING, placed=placed)


def placed(box: tuple[int, int, int, int], name: str | None) -> PlacedRegion:
    return PlacedRegion(np.array(box, dtype=np.float32), name)


def choose(found: Regions, around: Surroundings, **options) -> list[tuple[str, float, str]]:
    chosen = choose_labels(found, ACCEPTED, around, min_score=0.5, **options)
    return [(one.name, one.box_xyxy[0], one.origin) for one in chosen]


def test_nothing_found_gives_nothing():
    assert choose(regions(), unlabelled(placed(LEFT, "cup"))) == []


def test_certain_regions_of_named_and_known_classes_are_labels():
    found = regions((LEFT, CUP, 0.9), (MIDDLE, CAR, 0.8), (RIGHT, UNNAMED, 0.7))
    assert choose(found, unlabelled()) == [("cup", 0, "detected"), ("car", 20, "detected")]
    assert choose(regions((LEFT, CUP, 0.49)), unlabelled()) == []


def test_an_object_is_labelled_once_as_what_it_is_most_likely():
    shifted = (1, 0, 11, 10)
    assert choose(regions((LEFT, CUP, 0.9), (shifted, CAR, 0.8)), unlabelled()) == [
        ("cup", 0, "detected")
    ]
    assert choose(regions((LEFT, UNNAMED, 0.9), (shifted, CUP, 0.8)), unlabelled()) == []


def test_labelled_images_keep_their_labels_and_get_novel_classes_alone():
    found = regions((LEFT, CUP, 0.9), (MIDDLE, CAR, 0.8), (RIGHT, CUP, 0.7))
    around = Surroundings(is_labelled=True, annotated_xyxy=np.array([[1.0, 0, 11, 10]]))
    assert choose(found, around) == [("cup", 40, "detected")]


def test_what_people_placed_decides_over_all_that_overlaps_it():
    found = regions((LEFT, CUP, 0.9), (MIDDLE, DOG, 0.8), (RIGHT, CUP, 0.1))
    around = unlabelled(
        placed((1, 0, 11, 10), None), placed(MIDDLE, "vase"), placed((41, 0, 51, 10), "cup")
    )
    assert choose(found, around) == [("vase", 20, "placed"), ("cup", 40, "placed")]
    (first, *_) = choose_labels(found, ACCEPTED, around, min_score=0.5)
    assert first.rle == {"size": [10, 50], "counts": b"1"}
    assert first.score == pytest.approx(0.8)


def test_two_placed_regions_of_one_object_make_one_label():
    around = unlabelled(placed(LEFT, "cup"), placed((1, 0, 11, 10), "vase"))
    found = regions((LEFT, CUP, 0.9), ((1, 0, 11, 10), CUP, 0.8))
    assert choose(found, around) == [("cup", 0, "placed")]


def test_a_placed_region_that_nothing_overlaps_is_left_out():
    assert choose(regions((LEFT, CAR, 0.9)), unlabelled(placed(RIGHT, "cup"))) == [
        ("car", 0, "detected")
    ]


def test_placed_regions_alone_still_bring_known_classes_with_them():
    found = regions((LEFT, CUP, 0.9), (MIDDLE, CAR, 0.8), (RIGHT, CUP, 0.7))
    around = unlabelled(placed(RIGHT, "cup"))
    assert choose(found, around, only_placed=True) == [
        ("cup", 40, "placed"),
        ("car", 20, "detected"),
    ]


def test_a_number_is_no_name_and_an_ignored_cluster_has_none():
    decisions = Decisions(
        names={1: "cup", 2: "novel_0003", 3: "novel_0003", 4: "vase"}, ignored=frozenset({4})
    )
    assert [given_name(decisions, cluster) for cluster in range(-1, 6)] == [
        *(None, None, "cup", None, None, None, None)
    ]


def test_a_cluster_that_nobody_named_or_ignored_can_become_a_class():
    decisions = Decisions(
        names={1: "cup", 2: "novel_0003", 3: "novel_0003", 4: "vase"}, ignored=frozenset({4, 5})
    )
    known = ["car", "found_0007"]
    names = [
        class_name(decisions, cluster, known=known, unnamed=True)
        for cluster in (NOT_AN_OBJECT, *range(7))
    ]
    merged = ["found2_0003"] * 2
    assert names == [None, "found2_0000", "cup", *merged, None, None, "found2_0006"]


def test_classes_without_a_name_are_accepted_when_asked():
    decisions = Decisions(names={0: "cup", 2: "car", 3: "novel_0001"}, ignored=frozenset({4}))
    plain = Classifier(torch.nn.Identity(), output_names(["car", "dog"], 5), 2)
    classifier = plain.decided(
        Decisions(names={**decisions.names, 1: "novel_0001"}, ignored=frozenset({4}))
    )
    assert classifier.names == ("car", "dog", "cup", "novel_0001")
    named = accepted_classes(classifier, decisions)
    assert [named.name_of(label) for label in range(4)] == ["car", "dog", "cup", None]
    assert named.promoted == {0, 2}
    every = accepted_classes(classifier, decisions, unnamed=True)
    assert [every.name_of(label) for label in range(4)] == ["car", "dog", "cup", "found_0001"]
    assert every.promoted == {0, 2, 3}
    undecided = accepted_classes(plain, Decisions(), unnamed=True)
    assert undecided.names == ("car", "dog", *(f"found_{cluster:04d}" for cluster in range(5)))


def new_label(
    name: str, score: float = 0.9, *, origin: Origin = "detected", is_promoted: bool = True
) -> NewLabel:
    return NewLabel(name, (0, 0, 1, 1), score, origin, is_promoted)


def best(labels: list[NewLabel], share: float) -> list[tuple[str, float]]:
    """Name and score of what is left of labels of two images."""
    found = keep_best([(0, labels[::2]), (5, labels[1::2])], ["car"], share=share)
    assert [index for index, _ in found] == [0, 5]
    return sorted((one.name, one.score) for _, kept in found for one in kept)


def test_each_class_keeps_its_own_best_share():
    cups = [new_label("cup", 0.9 - i / 100) for i in range(10)]
    vases = [new_label("found_0001", 0.3 + i / 100) for i in range(4)]
    assert best([], 0.5) == []
    assert best([*cups, *vases], 1.0) == sorted((one.name, one.score) for one in (*cups, *vases))
    kept = sorted((one.name, one.score) for one in (*cups[:5], *vases[2:]))
    assert best([*cups, *vases], 0.5) == kept
    assert best([*cups, *vases], 0.0) == [("cup", 0.9), ("found_0001", vases[-1].score)]


@pytest.mark.parametrize(("share", "count"), [(0.07, 7), (0.29, 29), (0.571, 58)])
def test_a_share_is_rounded_up_to_whole_regions(share: float, count: int):
    cups = [new_label("cup", 0.9 - i / 1000) for i in range(100)]
    assert len(best(cups, share)) == count


def test_known_classes_and_what_people_placed_stay_whatever_they_score():
    placed_cup = new_label("cup", 0.1, origin="placed")
    low_car = new_label("car", 0.2, is_promoted=False)
    cups = [new_label("cup", score) for score in (0.9, 0.8, 0.7, 0.7)]
    found = best([*cups, placed_cup, low_car], 0.75)
    # Two lie on the threshold.
    assert found == [("car", 0.2), ("cup", 0.1), *(("cup", s) for s in (0.7, 0.7, 0.8, 0.9))]
    assert best([*cups, placed_cup, low_car], 0.5)[2:] == [("cup", 0.8), ("cup", 0.9)]


def test_rare_classes_are_left_out_and_with_them_images_that_have_no_others():
    cup, vase = new_label("cup"), new_label("vase")
    car = new_label("car", is_promoted=False)
    found = [(0, [cup, car]), (1, [vase, car]), (2, [cup, vase]), (3, [car])]
    assert keep_frequent([], ["car"], min_per_class=1) == ({}, {})
    kept, rare = keep_frequent(found, ["car"], min_per_class=2)
    assert (kept, rare) == ({0: [cup, car], 1: [vase, car], 2: [cup, vase]}, {})
    kept, rare = keep_frequent([*found, (4, [cup])], ["car"], min_per_class=3)
    assert (kept, rare) == ({0: [cup, car], 2: [cup], 4: [cup]}, {"vase": 2})


def test_a_known_class_is_never_too_rare():
    promoted_car = new_label("car")
    kept, rare = keep_frequent([(7, [promoted_car])], ["car"], min_per_class=100)
    assert (kept, rare) == ({7: [promoted_car]}, {})
