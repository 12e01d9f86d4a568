"""k-means, and the pseudo-labels it makes in place of the balanced assignment."""

import torch
from torch import Generator, Tensor
from torch.nn import functional

# Elements of one block of the regions x centroids distances: 64 MB of float32.
_BLOCK_ELEMENTS = 1 << 24
# Passes in which the first centroids are drawn; with fewer centroids this is k-means++ exactly.
_SEED_PASSES = 32


def kmeans(features: Tensor, k: int, *, rounds: int, generator: Generator | None = None) -> Tensor:
    """Centroids (k, F) of `features` (R, F), R >= k, after `rounds` of Lloyd's algorithm.

    Seeds are drawn, as in k-means++, with probability proportional to the squared distance from
    those already drawn, but several per pass when k is large. The same `generator` (on the CPU)
    state gives the same centroids.
    """
    if len(features) < k:
        raise ValueError(f"{len(features)} features cannot form {k} clusters")
    return refine_centroids(features, draw_seeds(features, k, generator), rounds=rounds)


def nearest(features: Tensor, centroids: Tensor) -> Tensor:
    """Index (R,) of the centroid (of (k, F)) nearest to each of the features (R, F)."""
    return nearest_distances(features, centroids)[0]


def refine_centroids(features: Tensor, centroids: Tensor, *, rounds: int) -> Tensor:
    """Centroids (k, F) after `rounds` of Lloyd's algorithm from the given ones.

    A centroid that no feature is nearest to moves to the worst served feature; where several do,
    the worst served are dealt out in turn.
    """
    for _ in range(rounds):
        labels, squared_distances = nearest_distances(features, centroids)
        counts = labels.bincount(minlength=len(centroids))
        sums = torch.zeros_like(centroids).index_add_(0, labels, features)
        centroids = sums / counts.clamp_min(1)[:, None]
        empty = (counts == 0).nonzero().flatten()[: len(features)]
        centroids[empty] = features[squared_distances.topk(len(empty)).indices]
    return centroids


def kmeans_pseudo_labels(
    embeddings: Tensor, logits: Tensor, *, num_known: int, rounds: int, keep_rows: int
) -> Tensor:
    """One-hot labels (keep_rows, C) of the first regions, from k-means over all M of them.

    The clusters are the outputs themselves, so that they mean the same from step to step: in the
    space of the novel head's `embeddings` (M, D), each output's centroid starts at the mean of
    the regions it wins by `logits` (M, C), and Lloyd's rounds follow. Clusters that win nothing
    are seeded anew where regions are served worst; known classes that win nothing take no part.
    Shares are not constrained: that is what this ablation leaves out.
    """
    num_classes = logits.shape[1]
    winners = logits.argmax(1)
    wins = winners.bincount(minlength=num_classes)
    is_cluster = torch.arange(num_classes, device=logits.device) >= num_known
    outputs = (is_cluster | (wins > 0)).nonzero().flatten()
    position = torch.zeros(num_classes, dtype=torch.long, device=logits.device)
    position[outputs] = torch.arange(len(outputs), device=logits.device)
    sums = embeddings.new_zeros(len(outputs), embeddings.shape[1])
    sums.index_add_(0, position[winners], embeddings)
    centroids = sums / wins[outputs].clamp_min(1)[:, None]
    # Out of reach of every region, so that the first round finds them empty and reseeds them.
    centroids[wins[outputs] == 0] = 2 * embeddings.abs().amax() * embeddings.shape[1] ** 0.5 + 1
    centroids = refine_centroids(embeddings, centroids, rounds=rounds)
    labels = outputs[nearest(embeddings[:keep_rows], centroids)]
    return functional.one_hot(labels, num_classes).to(logits.dtype)


def nearest_distances(features: Tensor, centroids: Tensor) -> tuple[Tensor, Tensor]:
    """Nearest centroid's index (R,) and squared distance (R,)."""
    half_norms = 0.5 * centroids.square().sum(1)
    labels, distances = [], []
    for rows in features.split(max(1, _BLOCK_ELEMENTS // len(centroids))):
        # |x - c|^2 / 2 less the |x|^2 / 2 that all centroids share
        best = torch.addmm(half_norms, rows, centroids.T, alpha=-1).min(1)
        labels.append(best.indices)
        distances.append((2 * best.values + rows.square().sum(1)).clamp_min(0))
    return torch.cat(labels), torch.cat(distances)


def draw_seeds(
    features: Tensor, k: int, generator: Generator | None, *, away_from: Tensor | None = None
) -> Tensor:
    """Distinct rows of the features, far from each other by preference, (k, F).

    `away_from` (J, F): centroids that there are already, and from which they are far as well.
    """
    distances = torch.full((len(features),), torch.inf)
    if away_from is not None and len(away_from):
        distances = nearest_distances(features, away_from)[1].cpu()
        chosen = torch.zeros(0, dtype=torch.int64)
    else:
        chosen = torch.randint(len(features), (1,), generator=generator)
    new = chosen
    while len(chosen) < k:
        if len(new):
            to_new = nearest_distances(features, features[new.to(features.device)])[1].cpu()
            distances = torch.minimum(distances, to_new)
        distances[chosen] = 0
        # Equal features lie at distance zero: when only such are left, any of them will do.
        rest = torch.ones_like(distances)
        rest[chosen] = 0
        weights = distances if distances.any() else rest
        wanted = min(k - len(chosen), -(-k // _SEED_PASSES), int((weights > 0).sum()))
        new = torch.multinomial(weights, wanted, generator=generator)
        chosen = torch.cat([chosen, new])
    return features[chosen.to(features.device)]
