import dataclasses
import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rncdl.classes import (
    ClassSplit,
    KnownLabels,
    cluster_name,
    found_name,
    is_cluster_name,
    is_found_name,
)
from rncdl.data.records import Category
from rncdl.data.segmentations import Segmentations
from rncdl.errors import UserError
from tests.data.made_up import annotation_set

NAMES = ("cat", "dog", "owl")


def test_a_split_needs_distinct_known_classes():
    with pytest.raises(UserError, match="No known classes"):
        ClassSplit(())
    with pytest.raises(UserError, match="more than once: cat"):
        ClassSplit(("cat", "dog", "cat"))


def test_known_are_the_annotated_classes_of_the_labelled_file():
    split = ClassSplit.from_labelled(annotation_set([0, 0, 1], [30, 10, 30], num_images=2))
    assert split.known == ("cat", "owl")
    with pytest.raises(UserError, match="No known classes"):
        ClassSplit.from_labelled(annotation_set([], [], num_images=2))


def test_known_by_names_or_by_a_file_of_names(tmp_path):
    assert ClassSplit.from_names("dog, cat").known == ("dog", "cat")
    assert ClassSplit.from_names(["dog", "cat, wild"]).known == ("dog", "cat, wild")
    path = tmp_path / "known.txt"
    path.write_text("owl\n\n  cat \n")
    assert ClassSplit.from_names(str(path)).known == ("owl", "cat")


def test_known_classes_must_be_in_the_labelled_file():
    annotations = annotation_set([0], [10], num_images=1)
    ClassSplit(("owl", "cat")).require_present(annotations)
    with pytest.raises(UserError, match=r"'dg' is not among .*'dog'"):
        ClassSplit(("dg",)).require_present(annotations)


def test_clusters_that_become_classes_have_a_new_name_in_each_round():
    known = ["cat", "novel_0012", "found"]
    first = found_name(cluster_name(12), known)
    second = found_name(cluster_name(12), [*known, first])
    third = found_name(cluster_name(12), [*known, first, "Found2_0007"])
    assert (first, second, third) == ("found_0012", "found2_0012", "found3_0012")
    assert all(is_found_name(name) and not is_cluster_name(name) for name in (first, second, third))
    assert not any(map(is_found_name, [*known, "found_", "found_12a", "lost_found_0012"]))
    assert ClassSplit((first, "cat", second)).found == (0, 2)


def test_ids_of_known_classes():
    annotations = annotation_set([], [], num_images=0)
    split = ClassSplit(("owl", "cat", "absent"))
    assert split.known_ids(annotations) == {30: 0, 10: 1}
    assert split.num_known == 3


def test_nothing_known_in_a_file():
    labels = ClassSplit(("absent",)).keep_known(annotation_set([0, 1], [10, 20], num_images=2))
    assert len(labels.labels) == 0
    assert labels.annotations.categories == ()
    assert len(labels.annotations.images) == 2


ROWS = st.lists(st.tuples(st.integers(0, 4), st.sampled_from([10, 20, 30])))


@given(ROWS, st.permutations(NAMES).flatmap(lambda p: st.integers(1, 3).map(lambda k: p[:k])))
def test_known_annotations_come_through_and_no_others(rows, known):
    rows = sorted(rows)
    annotations = annotation_set([i for i, _ in rows], [c for _, c in rows], num_images=5)
    labels = ClassSplit(tuple(known)).keep_known(annotations)
    name_of = {10: "cat", 20: "dog", 30: "owl"}
    expected = [(i, known.index(name_of[c])) for i, c in rows if name_of[c] in known]
    kept = labels.annotations
    assert list(zip(kept.image_index.tolist(), labels.labels.tolist(), strict=True)) == expected
    assert labels.labels.dtype == np.int64
    assert {c.name for c in kept.categories} == set(known)
    columns = (kept.annotation_ids, kept.category_ids, kept.boxes_xyxy, kept.areas, kept.is_crowd)
    assert {len(column) for column in (*columns, kept.segmentations)} == {len(expected)}


def test_the_order_of_the_categories_in_the_file_does_not_matter():
    annotations = annotation_set([0, 0, 1], [10, 20, 30], num_images=2)
    turned = dataclasses.replace(annotations, categories=annotations.categories[::-1])
    split = ClassSplit(("dog", "owl", "cat"))
    assert split.keep_known(turned).labels.tolist() == [2, 0, 1]


def test_no_trace_of_novel_labels_reaches_training():
    annotations = annotation_set([0, 0, 1], [10, 20, 30], num_images=2)
    annotations = dataclasses.replace(
        annotations,
        images=tuple(
            dataclasses.replace(
                image, neg_category_ids=(10, 20), not_exhaustive_category_ids=(30, 10)
            )
            for image in annotations.images
        ),
        categories=tuple(
            dataclasses.replace(c, name=f"{c.name}-name", synset=f"{c.name}-synset")
            for c in annotations.categories
        ),
        segmentations=Segmentations.pack([b"[cat-mask]", b"[dog-mask]", b"[owl-mask]"]),
        is_federated=True,
    )
    labels = ClassSplit(("cat-name",)).keep_known(annotations)
    for image in labels.annotations.images:
        assert image.neg_category_ids == image.not_exhaustive_category_ids == (10,)
    everything = pickle.dumps(labels)
    assert b"cat-mask" in everything
    for word in (b"dog", b"owl"):
        assert word not in everything


def test_novel_labels_cannot_be_put_in_by_hand():
    split = ClassSplit(("cat",))
    labels = split.keep_known(annotation_set([0], [10], num_images=1))
    novel = annotation_set([0], [20], num_images=1)
    with pytest.raises(AssertionError, match="dog"):
        KnownLabels(split, novel, np.zeros(1, np.int64))
    smuggled = dataclasses.replace(novel, categories=(Category(10, "cat"),))
    with pytest.raises(AssertionError, match="20"):
        KnownLabels(split, smuggled, np.zeros(1, np.int64))
    with pytest.raises(AssertionError, match="one label"):
        KnownLabels(split, labels.annotations, np.zeros(2, np.int64))
