import numpy as np

from rncdl.gallery.exemplars import Candidates, ExemplarSearch


def candidates(clusters, images, keys) -> Candidates:
    clusters = np.array(clusters, dtype=np.int64)
    return Candidates(
        clusters=clusters,
        image_index=np.array(images, dtype=np.int64),
        regions=np.arange(len(clusters)),
        confidence=np.array(keys, dtype=np.float32),
        keys=np.array(keys, dtype=np.float32),
    )


def test_a_search_that_saw_nothing_finds_nothing():
    assert ExemplarSearch({"confident": 2}).chosen(3) == [[], [], []]
    search = ExemplarSearch({"confident": 2})
    search.show("confident", candidates([], [], []))
    assert search.chosen(1) == [[]]


def test_the_best_of_each_cluster_come_first_and_one_of_an_image():
    found = candidates([1, 0, 1, 1, 0], [7, 7, 7, 8, 9], [0.5, 0.1, 0.9, 0.7, 0.3]).best(2)
    assert found.clusters.tolist() == [0, 0, 1, 1]
    assert found.image_index.tolist() == [9, 7, 7, 8]
    assert found.regions.tolist() == [4, 1, 2, 3]


def test_an_image_may_stand_for_several_clusters():
    found = candidates([0, 1, 2], [7, 7, 7], [0.1, 0.2, 0.3]).best(1)
    assert found.clusters.tolist() == [0, 1, 2]


def test_block_by_block_equals_all_at_once():
    rng = np.random.default_rng(0)
    images = np.sort(rng.integers(0, 60, 900))
    clusters, keys = rng.integers(0, 5, 900), rng.permutation(900)
    expected = candidates(clusters, images, keys).best(4)
    search = ExemplarSearch({"confident": 4})
    for start in range(0, 60, 7):
        rows = (images >= start) & (images < start + 7)
        search.show("confident", candidates(clusters, images, keys).select(np.flatnonzero(rows)))
    found = [one for of_cluster in search.chosen(5) for one in of_cluster]
    assert [(one.image_index, one.region) for one in found] == list(
        zip(expected.image_index.tolist(), expected.regions.tolist(), strict=True)
    )


def test_an_image_stands_for_a_cluster_once_whatever_the_kind():
    search = ExemplarSearch({"confident": 2, "typical": 2})
    images = [1, 2, 3, 4]
    search.show("confident", candidates([0] * 4, images, [4, 3, 2, 1]))
    search.show("typical", candidates([0] * 4, images, [4, 3, 2, 1]))
    (found,) = search.chosen(1)
    assert [(one.kind, one.image_index) for one in found] == [
        ("confident", 1),
        ("confident", 2),
        ("typical", 3),
        ("typical", 4),
    ]
