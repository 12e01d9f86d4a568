from collections import Counter
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rncdl.classes import ClassSplit
from rncdl.data.batches import EvaluationBatches, TrainingBatches, repeat_factors
from rncdl.data.records import ImageRecord
from rncdl.errors import UserError
from rncdl.training.processes import Processes
from tests.data.made_up import annotation_set


def images(*, wide, tall):
    shapes = [(48, 64)] * wide + [(64, 48)] * tall
    return [ImageRecord(i, Path(f"{i}.png"), h, w) for i, (h, w) in enumerate(shapes)]


def process(rank, count):
    return Processes(rank, count, torch.device("cpu"))


def take(batches, count):
    return list(islice(batches, count))


def test_no_images():
    with pytest.raises(UserError, match="no images to train on"):
        TrainingBatches([], batch_size=2, seed=0)
    with pytest.raises(UserError, match="no images to train on"):
        TrainingBatches(images(wide=3, tall=0), batch_size=2, seed=0, repeats=np.zeros(3))
    assert list(EvaluationBatches(0, batch_size=4)) == []


def test_a_batch_must_divide_among_the_processes():
    with pytest.raises(UserError, match="6 images cannot be shared equally by 4"):
        TrainingBatches(images(wide=9, tall=0), batch_size=6, seed=0, processes=process(0, 4))


@settings(max_examples=50)
@given(
    wide=st.integers(0, 12),
    tall=st.integers(0, 12),
    batch_size=st.integers(1, 7),
    start=st.integers(0, 60),
    seed=st.integers(0, 2**32),
)
def test_starting_late_continues_an_uninterrupted_run(wide, tall, batch_size, start, seed):
    pictures = images(wide=wide + 1, tall=tall)
    repeats = np.linspace(1, 2.5, len(pictures))
    options = {"batch_size": batch_size, "seed": seed, "repeats": repeats}
    whole = take(TrainingBatches(pictures, **options), start + 10)
    resumed = take(TrainingBatches(pictures, start_step=start, **options), 10)
    assert resumed == whole[start:]


@settings(max_examples=50)
@given(st.integers(1, 20), st.integers(0, 20), st.integers(1, 8), st.integers(0, 1000))
def test_every_epoch_shows_every_image_and_no_batch_mixes(wide, tall, batch_size, seed):
    pictures = images(wide=wide, tall=tall)
    epochs = 4
    count = epochs * len(pictures) // batch_size
    batches = take(TrainingBatches(pictures, batch_size=batch_size, seed=seed), count)
    for batch in batches:
        assert len(batch) == batch_size
        assert len({pictures[index].width > pictures[index].height for index, _ in batch}) == 1
    shown = Counter(index for batch in batches for index, _ in batch)
    # Each group may have up to batch_size - 1 images waiting, which the other has overtaken by.
    for group in (range(wide), range(wide, wide + tall)):
        times = [shown[index] for index in group]
        if times:
            assert max(times) - min(times) <= 1
            assert abs(sum(times) - epochs * len(group)) < 2 * batch_size


def test_wide_and_tall_batches_come_in_turn_rather_than_one_kind_first():
    pictures = images(wide=40, tall=40)
    batches = take(TrainingBatches(pictures, batch_size=4, seed=0), 18)
    is_wide = np.array([batch[0][0] < 40 for batch in batches])
    assert 3 <= is_wide[:9].sum() <= 6
    assert np.abs(np.diff(is_wide.astype(int))).sum() >= 4


def test_without_grouping_an_epoch_is_a_permutation():
    pictures = images(wide=6, tall=6)
    batches = TrainingBatches(pictures, batch_size=4, seed=3, group_by_aspect=False)
    first, second = take(batches, 6)[:3], take(batches, 6)[3:]
    for epoch in (first, second):
        assert sorted(index for batch in epoch for index, _ in batch) == list(range(12))
    assert [key for batch in first for key in batch] != [key for batch in second for key in batch]


@pytest.mark.parametrize("world_size", [2, 3])
def test_the_ranks_share_out_the_same_global_batches(world_size):
    pictures = images(wide=20, tall=13)
    whole = take(TrainingBatches(pictures, batch_size=6, seed=1), 20)
    parts = [
        take(
            TrainingBatches(pictures, batch_size=6, seed=1, processes=process(rank, world_size)), 20
        )
        for rank in range(world_size)
    ]
    for step, batch in enumerate(whole):
        shares = [parts[rank][step] for rank in range(world_size)]
        assert {len(share) for share in shares} == {6 // world_size}
        assert sorted(key for share in shares for key in share) == sorted(batch)


def test_item_seeds_differ_and_runs_with_other_seeds_differ():
    pictures = images(wide=30, tall=0)
    batches = take(TrainingBatches(pictures, batch_size=5, seed=0), 60)
    seeds = [seed for batch in batches for _, seed in batch]
    assert len(set(seeds)) == len(seeds)
    assert take(TrainingBatches(pictures, batch_size=5, seed=1), 60) != batches


def test_repeats_are_kept_on_average_and_zero_leaves_out():
    repeats = np.array([0, 1, 1.25, 2.5])
    batches = TrainingBatches(images(wide=4, tall=0), batch_size=1, seed=0, repeats=repeats)
    epochs = 400
    shown = Counter(b[0][0] for b in take(batches, int(epochs * repeats.sum())))
    assert shown[0] == 0
    for index in (1, 2, 3):
        assert shown[index] / epochs == pytest.approx(repeats[index], rel=0.05)


def test_evaluation_shows_every_image_once_in_order():
    assert list(EvaluationBatches(5, batch_size=2)) == [
        [(0, 0), (1, 0)],
        [(2, 0), (3, 0)],
        [(4, 0)],
    ]
    for world_size in (1, 2, 3, 7):
        ranks = [
            EvaluationBatches(5, batch_size=2, processes=process(rank, world_size))
            for rank in range(world_size)
        ]
        assert sorted(key for r in ranks for b in r for key in b) == [(i, 0) for i in range(5)]
        assert all(len(list(r)) == len(r) for r in ranks)


@pytest.mark.parametrize("done", [0, 1, 2, 3])
def test_evaluation_goes_on_after_the_batches_that_are_done(done):
    for rank in (0, 1):
        every = list(EvaluationBatches(9, batch_size=2, processes=process(rank, 2)))
        rest = EvaluationBatches(9, batch_size=2, processes=process(rank, 2), start_batch=done)
        assert list(rest) == every[done:]
        assert len(rest) == len(every[done:])


def known_labels(image_index, category_ids, **options):
    annotations = annotation_set(image_index, category_ids, **options)
    return ClassSplit(("cat", "dog")).keep_known(annotations)


def test_repeat_factors_without_annotations():
    labels = known_labels([], [], num_images=3)
    assert repeat_factors(labels, 0.001).tolist() == [0, 0, 0]
    assert repeat_factors(labels, 0.001, with_unannotated=True).tolist() == [1, 1, 1]


def test_repeat_factors_by_the_formula():
    # cat in 9 of 10 images (twice in one), dog in 1, which also has a cat; image 9 has nothing.
    labels = known_labels([*range(9), 8, 8], [10] * 9 + [10, 20], num_images=10)
    factors = repeat_factors(labels, 0.4)
    np.testing.assert_allclose(factors, [1] * 8 + [np.sqrt(0.4 / 0.1), 0])
    assert repeat_factors(labels, 0.0).tolist() == [1] * 9 + [0]
    assert repeat_factors(labels, 0.4, with_unannotated=True)[9] == 1


def test_crowds_and_novel_classes_do_not_make_an_image_repeat():
    labels = known_labels([0, 1, 2, 3], [10, 20, 30, 10], num_images=4, crowd_rows=[1])
    assert repeat_factors(labels, 0.9)[[1, 2]].tolist() == [0, 0]
