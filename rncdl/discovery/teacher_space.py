"""The teacher's features in a space where known classes are compact: there new ones are, too.

Objects of one class differ in pose, light and colour. Along the directions in which those of the
known classes do, distances say little about classes, so that they are shortened: the whitening of
linear discriminant analysis, by the covariance inside the known classes.
"""

import torch
from torch import Tensor
from torch.nn import functional

DIMENSIONS = 128
_SHRINKAGE = 0.5
"""Of the covariance towards a round one, which knows no direction: few objects may be labelled."""


def known_class_space(features: Tensor, labelled: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Both (R, F) and (L, F) in D dimensions, of length one; `labels` (L,): known classes.

    Their first `DIMENSIONS` principal components, whitened. Without labels all directions count
    alike.
    """
    components = principal_components(torch.cat([features, labelled]))
    whitened = components @ whitening(components[len(features) :], labels)
    found = functional.normalize(whitened).float()
    return found[: len(features)], found[len(features) :]


def principal_components(features: Tensor) -> Tensor:
    """(R, D) float64, the first `DIMENSIONS` of (R, F), around their mean."""
    centred = features.double()
    centred = centred - centred.mean(0)
    covariance = centred.T @ centred / max(1, len(centred))
    _, directions = torch.linalg.eigh(covariance)
    return centred @ directions[:, -DIMENSIONS:]


def whitening(labelled: Tensor, labels: Tensor) -> Tensor:
    """(D, D) by which vectors are multiplied, from labelled ones (L, D)."""
    count = labelled.shape[1]
    offsets = labelled.clone()
    for known in labels.unique().tolist():
        rows = labels == known
        offsets[rows] -= labelled[rows].mean(0)
    covariance = offsets.T @ offsets / max(1, len(offsets))
    scale = covariance.diagonal().mean()
    identity = torch.eye(count, dtype=labelled.dtype, device=labelled.device)
    if not scale > 0:  # no labelled object, or one of each class: nothing is known of directions
        return identity
    variances, directions = torch.linalg.eigh(
        (1 - _SHRINKAGE) * covariance + _SHRINKAGE * scale * identity
    )
    return directions / variances.sqrt()
