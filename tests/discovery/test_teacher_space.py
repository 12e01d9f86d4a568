import torch
from torch import Tensor

from rncdl.discovery.kmeans import kmeans, nearest
from rncdl.discovery.teacher_space import DIMENSIONS, known_class_space

NO_LABELS = torch.zeros(0, dtype=torch.int64)


def test_no_features_have_no_place():
    features, labelled = known_class_space(torch.zeros(0, 6), torch.zeros(0, 6), NO_LABELS)
    assert features.shape == labelled.shape == (0, 6)


def test_without_labels_the_principal_components_are_left_as_they_are():
    features = torch.randn(50, 6, generator=torch.Generator().manual_seed(0))
    found, _ = known_class_space(features, torch.zeros(0, 6), NO_LABELS)
    centred = torch.nn.functional.normalize(features - features.mean(0))
    torch.testing.assert_close(found @ found.T, centred @ centred.T, rtol=1e-4, atol=1e-4)


def test_one_object_of_each_class_tells_nothing_of_directions():
    features = torch.randn(20, 6, generator=torch.Generator().manual_seed(0))
    labelled = torch.randn(3, 6, generator=torch.Generator().manual_seed(1))
    found, of_labelled = known_class_space(features, labelled, torch.arange(3))
    assert found.isfinite().all()
    assert of_labelled.isfinite().all()


def test_at_most_so_many_dimensions_and_vectors_of_length_one():
    features = torch.randn(300, DIMENSIONS + 50, generator=torch.Generator().manual_seed(0))
    found, _ = known_class_space(features, features[:10], torch.zeros(10, dtype=torch.int64))
    assert found.shape == (300, DIMENSIONS)
    torch.testing.assert_close(found.norm(dim=1), torch.ones(300))


def two_new_classes(num: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """They differ in the first direction; in the second, a pose, all objects differ far more."""
    classes = torch.arange(num) % 2
    features = 0.1 * torch.randn(num, 4, generator=generator)
    features[:, 0] += 2.0 * classes - 1
    features[:, 1] += 6 * torch.rand(num, generator=generator) - 3
    return features, classes


def test_new_classes_part_once_known_ones_have_shown_what_does_not_matter():
    generator = torch.Generator().manual_seed(0)
    features, classes = two_new_classes(200, generator)
    labelled = 0.1 * torch.randn(100, 4, generator=generator)
    labelled[:, 1] += 6 * torch.rand(100, generator=generator) - 3
    labels = torch.arange(100) % 2
    labelled[:, 2] += 2.0 * labels - 1

    def purity(rows: Tensor) -> float:
        found = nearest(rows, kmeans(rows, 2, rounds=20, generator=generator))
        right = (found == classes).float().mean().item()
        return max(right, 1 - right)

    whitened, _ = known_class_space(features, labelled, labels)
    assert purity(features) < 0.8
    assert purity(whitened) > 0.95
