import copy
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn import functional

from rncdl.discovery.bank import Bank, BankShape
from rncdl.discovery.heads import DiscoveryHeads
from rncdl.gallery import summaries as module
from rncdl.gallery.exemplars import Kind
from rncdl.gallery.summaries import ClusterSummaries, summarise_clusters

WANTED: dict[Kind, int] = {"confident": 3, "typical": 2, "random": 2, "doubtful": 2}


@pytest.fixture(params=[7, 4096])
def found(
    bank: Bank, heads: DiscoveryHeads, request: pytest.FixtureRequest, monkeypatch
) -> ClusterSummaries:
    """The summaries, from blocks of 7 regions and from one block."""
    monkeypatch.setattr(module, "BLOCK_REGIONS", request.param)
    return summarise_clusters(bank, heads, exemplars=WANTED)


@torch.inference_mode()
def everything(bank: Bank, heads: DiscoveryHeads) -> dict[str, np.ndarray]:
    """All regions at once, the plain way."""
    counts = bank.counts()
    images = [i for i in range(len(counts)) if counts[i] > 0]
    features = torch.cat([bank.read(i, 0, count=int(counts[i])) for i in images]).float()
    heads.eval()
    probabilities = heads.probabilities(features)
    best = probabilities.sort(1, descending=True)
    embeddings = functional.normalize(heads.novel[0].projection(features))
    weight = torch.cat([heads.known.linear.weight, heads.known.background_weight[None]])
    bias = torch.cat([heads.known.linear.bias, heads.known.background_bias[None]])
    as_trained = (features @ weight.T + bias).softmax(1)
    return {
        "image": np.repeat(images, counts[images]),
        "region": np.concatenate([np.arange(counts[i]) for i in images]),
        "output": best.indices[:, 0].numpy(),
        "confidence": best.values[:, 0].numpy(),
        "margin": (best.values[:, 0] - best.values[:, 1]).numpy(),
        "embedding": embeddings.numpy(),
        "as_trained": as_trained.numpy(),
    }


def test_regions_without_an_object_are_in_no_cluster(bank: Bank, heads: DiscoveryHeads):
    """The background's prototype takes what the first cluster had, and nothing else changes."""
    before = summarise_clusters(bank, heads, exemplars=WANTED)
    taught = copy.deepcopy(heads)
    (novel,) = taught.novel
    with torch.no_grad():
        novel.background = torch.nn.Parameter(novel.prototypes[:1].clone())
        novel.prototypes[0] = -novel.prototypes[0]
    after = summarise_clusters(bank, taught, exemplars=WANTED)
    assert before.sizes[0] > 0
    assert after.sizes[1:].tolist() == before.sizes[1:].tolist()
    assert after.known_sizes.tolist() == before.known_sizes.tolist()
    assert after.sizes[0] == 0


def test_what_another_takes_for_known_is_in_no_cluster(bank: Bank, heads: DiscoveryHeads):
    class TakesTheFirstHalf(torch.nn.Module):
        def forward(self, features: torch.Tensor) -> torch.Tensor:
            certain = torch.zeros(len(features), heads.num_known)
            certain[features[:, 0] > 0, 0] = 2.0
            return certain

    found = summarise_clusters(bank, heads, exemplars=WANTED, known=TakesTheFirstHalf())
    counts = bank.counts()
    rows = [bank.read(i, 0, count=int(counts[i])) for i in range(len(counts)) if counts[i] > 0]
    taken = int((torch.cat(rows)[:, 0] > 0).sum())
    assert 0 < taken < sum(map(len, rows))
    assert found.known_sizes[0] == taken
    assert found.known_sizes.sum() + found.sizes.sum() == sum(map(len, rows))


def test_an_empty_bank_has_empty_clusters(tmp_path: Path, heads: DiscoveryHeads):
    Bank.create(tmp_path / "empty", BankShape(3, 1, 2, 4, 1, 6), {})
    found = summarise_clusters(Bank(tmp_path / "empty"), heads, exemplars=WANTED)
    assert found.sizes.tolist() == [0] * 5
    assert found.confidence.tolist() == [0.0] * 5
    assert found.exemplars == [[]] * 5


def test_every_figure_is_that_of_the_plain_way(
    found: ClusterSummaries, bank: Bank, heads: DiscoveryHeads
):
    expected = everything(bank, heads)
    assert found.sizes.sum() + found.known_sizes.sum() == len(expected["image"])
    for k in range(3):
        assert found.known_sizes[k] == (expected["output"] == k).sum()
    assert (found.sizes > 0).sum() > 2
    for cluster in np.flatnonzero(found.sizes):
        rows = expected["output"] == 3 + cluster
        assert found.sizes[cluster] == rows.sum()
        assert found.num_images[cluster] == len(set(expected["image"][rows]))
        assert found.confidence[cluster] == pytest.approx(expected["confidence"][rows].mean())
        members = expected["embedding"][rows]
        mean = members.mean(0)
        cosines = members @ mean / np.linalg.norm(mean)
        assert found.coherence[cluster] == pytest.approx(cosines.mean(), abs=1e-5)
        as_trained = expected["as_trained"][rows]
        assert found.background_share[cluster] == pytest.approx((as_trained[:, 3] > 0.5).mean())
        likeness = as_trained[:, :3].mean(0)
        assert found.nearest_known[cluster] == likeness.argmax()
        assert found.known_likeness[cluster] == pytest.approx(likeness.max(), abs=1e-5)


def test_the_nearest_clusters_are_others_in_order_of_their_prototypes_cosine(
    found: ClusterSummaries, heads: DiscoveryHeads
):
    prototypes = functional.normalize(heads.novel[0].prototypes.detach()).numpy()
    cosines = prototypes @ prototypes.T
    for cluster, nearest in enumerate(found.nearest_clusters.tolist()):
        others = [other for other in range(5) if other != cluster]
        assert nearest == sorted(others, key=lambda other: -cosines[cluster, other])[:3]


def test_exemplars_are_members_of_different_images(
    found: ClusterSummaries, bank: Bank, heads: DiscoveryHeads
):
    expected = everything(bank, heads)
    output_of = dict(
        zip(
            zip(expected["image"].tolist(), expected["region"].tolist(), strict=True),
            expected["output"].tolist(),
            strict=True,
        )
    )
    for cluster, exemplars in enumerate(found.exemplars):
        images = [one.image_index for one in exemplars]
        assert len(set(images)) == len(images) == min(9, found.num_images[cluster])
        assert all(output_of[one.image_index, one.region] == 3 + cluster for one in exemplars)


def test_the_most_confident_is_the_most_confident(
    found: ClusterSummaries, bank: Bank, heads: DiscoveryHeads
):
    expected = everything(bank, heads)
    for cluster in np.flatnonzero(found.sizes):
        rows = expected["output"] == 3 + cluster
        first = found.exemplars[cluster][0]
        assert first.kind == "confident"
        assert first.confidence == pytest.approx(expected["confidence"][rows].max())


def test_typical_regions_are_nearest_to_the_prototype(bank: Bank, heads: DiscoveryHeads):
    found = summarise_clusters(bank, heads, exemplars={"typical": 1})
    expected = everything(bank, heads)
    prototypes = functional.normalize(heads.novel[0].prototypes.detach()).numpy()
    for cluster in np.flatnonzero(found.sizes):
        rows = np.flatnonzero(expected["output"] == 3 + cluster)
        row = rows[(expected["embedding"][rows] @ prototypes[cluster]).argmax()]
        (one,) = found.exemplars[cluster]
        assert (one.image_index, one.region) == (expected["image"][row], expected["region"][row])


def test_doubtful_regions_lead_by_the_least(bank: Bank, heads: DiscoveryHeads):
    found = summarise_clusters(bank, heads, exemplars={"doubtful": 1})
    expected = everything(bank, heads)
    for cluster in np.flatnonzero(found.sizes):
        rows = np.flatnonzero(expected["output"] == 3 + cluster)
        row = rows[expected["margin"][rows].argmin()]
        (one,) = found.exemplars[cluster]
        assert (one.image_index, one.region) == (expected["image"][row], expected["region"][row])


def test_what_is_new_and_heaps_up_on_objects_promises_most():
    """Clusters that differ from the first in one column each, a rare one, and an empty one."""
    found = ClusterSummaries(
        known_sizes=np.zeros(1, dtype=np.int64),
        sizes=np.array([40, 40, 40, 40, 40, 4, 0]),
        num_images=np.array([10, 20, 10, 10, 10, 1, 0]),
        confidence=np.full(7, 0.5),
        coherence=np.array([0.8, 0.8, 0.7, 0.8, 0.8, 0.8, 0.0]),
        background_share=np.array([0.1, 0.1, 0.1, 0.2, 0.1, 0.1, 0.0]),
        nearest_known=np.zeros(7, dtype=np.int64),
        known_likeness=np.array([0.1, 0.1, 0.1, 0.1, 0.2, 0.1, 0.0]),
        nearest_clusters=np.zeros((7, 1), dtype=np.int64),
        exemplars=[[]] * 7,
    )
    assert found.promise[0] == pytest.approx(0.8 * 0.9 * 0.9 * 4 * 10 / 20)
    assert (found.promise[1:] < found.promise[0]).all()
    assert found.promise[6] == 0
