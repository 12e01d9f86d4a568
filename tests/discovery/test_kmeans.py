import pytest
import torch
from torch.nn import functional

from rncdl.discovery import kmeans as kmeans_module
from rncdl.discovery.kmeans import kmeans, kmeans_pseudo_labels, nearest, refine_centroids


def blobs(num_blobs: int, per_blob: int, *, spread: float = 0.05, seed: int = 0):
    """Features around well separated centres, shuffled, and the centre of each."""
    generator = torch.Generator().manual_seed(seed)
    centres = 10 * torch.randn(num_blobs, 8, generator=generator)
    labels = torch.arange(num_blobs).repeat(per_blob)
    noise = spread * torch.randn(len(labels), 8, generator=generator)
    return centres[labels] + noise, labels, centres


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_no_features_have_no_nearest_centroid():
    assert nearest(torch.empty(0, 3), torch.randn(4, 3)).shape == (0,)


def test_fewer_features_than_clusters_are_refused():
    with pytest.raises(ValueError, match="2 features cannot form 3 clusters"):
        kmeans(torch.randn(2, 4), 3, rounds=1)


def test_nearest_is_the_least_distance_in_blocks_too(monkeypatch):
    features, centroids = torch.randn(50, 6), torch.randn(7, 6)
    expected = torch.cdist(features, centroids).argmin(1)
    assert torch.equal(nearest(features, centroids), expected)
    monkeypatch.setattr(kmeans_module, "_BLOCK_ELEMENTS", 30)
    assert torch.equal(nearest(features, centroids), expected)


@pytest.mark.parametrize("num_blobs", [1, 5, 10])
def test_separate_blobs_are_found(num_blobs):
    features, _, centres = blobs(num_blobs, 20)
    centroids = kmeans(features, num_blobs, rounds=10, generator=seeded())
    found = nearest(centres, centroids)
    assert len(found.unique()) == num_blobs
    torch.testing.assert_close(centroids[found], centres, atol=0.1, rtol=0)


def test_of_many_blobs_most_are_found():
    # Several seeds a pass; rows drawn at random would find 63 % of them.
    features, _, centres = blobs(200, 20)
    centroids = kmeans(features, 200, rounds=10, generator=seeded())
    assert len(nearest(centres, centroids).unique()) > 0.85 * 200


def test_the_generator_decides():
    features = torch.randn(200, 4, generator=seeded())
    first, second = (kmeans(features, 9, rounds=3, generator=seeded(1)) for _ in range(2))
    assert torch.equal(first, second)
    assert not torch.equal(first, kmeans(features, 9, rounds=3, generator=seeded(2)))


def test_as_many_clusters_as_features_take_one_each():
    features = torch.randn(40, 4, generator=seeded())
    centroids = kmeans(features, 40, rounds=0, generator=seeded())
    assert nearest(features, centroids).unique().numel() == 40


def test_equal_features_are_no_obstacle():
    centroids = kmeans(torch.ones(10, 3), 4, rounds=2, generator=seeded())
    assert torch.equal(centroids, torch.ones(4, 3))


def test_one_round_of_lloyd_by_hand():
    features = torch.tensor([[0.0], [2.0], [10.0], [14.0]])
    moved = refine_centroids(features, torch.tensor([[1.0], [11.0]]), rounds=1)
    assert moved.flatten().tolist() == [1.0, 12.0]


def test_an_empty_centroid_moves_to_the_worst_served_feature():
    features = torch.tensor([[0.0], [1.0], [30.0]])
    moved = refine_centroids(features, torch.tensor([[0.0], [1000.0]]), rounds=1)
    assert moved[1].item() == 30
    labels = nearest(features, refine_centroids(features, moved, rounds=1))
    assert labels.tolist() == [0, 0, 1]


def test_pseudo_labels_repair_the_clusters_and_keep_their_names():
    # Every output wins its own blob, but for one region in ten that a neighbour wins wrongly.
    features, blob, _ = blobs(6, 30)
    wrong = torch.rand(len(blob), generator=seeded()) < 0.1
    logits = 5.0 * functional.one_hot(torch.where(wrong, (blob + 1) % 6, blob), 6)
    labels = kmeans_pseudo_labels(features, logits, num_known=2, rounds=3, keep_rows=50)
    assert torch.equal(labels, functional.one_hot(blob[:50], 6).float())


def test_clusters_that_win_nothing_are_seeded_anew_and_known_classes_are_not():
    features, blob, _ = blobs(4, 30)
    # Known class 0 wins nothing; known class 1 wins blob 0; cluster 2 wins the rest.
    logits = functional.one_hot(torch.where(blob == 0, 1, 2), 5).float()
    labels = kmeans_pseudo_labels(features, logits, num_known=2, rounds=5, keep_rows=120).argmax(1)
    assert set(labels.tolist()) == {1, 2, 3, 4}
    assert labels[blob == 0].unique().tolist() == [1]
    assert set(labels[blob > 0].tolist()) == {2, 3, 4}


def test_more_clusters_than_regions_still_label_every_region():
    labels = kmeans_pseudo_labels(
        torch.randn(4, 3), torch.randn(4, 20), num_known=5, rounds=2, keep_rows=4
    )
    assert labels.sum(1).tolist() == [1] * 4
