"""A whole step: what it teaches, what it touches and what it reports."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor

from rncdl.discovery._accelerated_sinkhorn import accelerated_sinkhorn
from rncdl.discovery.distillation import BALANCE_WEIGHT
from rncdl.discovery.feeding import DiscoveryBatch
from rncdl.discovery.heads import DiscoveryHeads, KnownHead, NovelHead
from rncdl.discovery.loss import UNTAUGHT
from rncdl.discovery.prior import class_shares, order_shares
from rncdl.discovery.step import (
    Labelling,
    PseudoLabels,
    _moved_alike,
    discovery_step,
    pseudo_labels,
    taught_step,
)

F, K, N = 12, 3, 9
KINDS = ("sinkhorn", "distilled")


def make_heads(num_clusters: tuple[int, ...] = (N,), **options: Any) -> DiscoveryHeads:
    torch.manual_seed(0)
    known = KnownHead.from_classifier(0.3 * torch.randn(K + 1, F), torch.zeros(K + 1))
    sizes: dict[str, Any] = {"hidden_width": 32, "projection_width": 8} | options
    return DiscoveryHeads(known, [NovelHead(F, n, **sizes) for n in num_clusters])


def clustered_features(num_rows: int, *, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Features around K + N centres, always the same, and the centre of each."""
    centres = 2 * torch.randn(K + N, F, generator=torch.Generator().manual_seed(99))
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(K + N, (num_rows,), generator=generator)
    return centres[labels] + 0.2 * torch.randn(num_rows, F, generator=generator), labels


def make_batch(*, batch: int = 40, memory: int = 300, labelled: int = 20) -> dict[str, Any]:
    features, _ = clustered_features(batch)
    remembered, _ = clustered_features(memory, seed=1)
    matched, classes = clustered_features(labelled, seed=2)
    views = (features, features + 0.1 * torch.randn_like(features))
    return {
        "batch": DiscoveryBatch(views, matched, classes % K),
        "memories": (remembered, remembered + 0.1 * torch.randn_like(remembered)),
    }


def run_step(heads: DiscoveryHeads, batch: dict[str, Any], **changes: Any):
    options: dict[str, Any] = {"labelling": Labelling(), "alpha": 0.5} | changes
    return discovery_step(heads, **batch, **options)


@pytest.mark.parametrize("kind", KINDS)
def test_no_regions_give_a_loss_of_zero_that_can_be_followed(kind):
    heads, nothing = make_heads(), make_batch(batch=0, memory=0, labelled=0)
    loss, statistics, _ = run_step(heads, nothing, labelling=Labelling(kind=kind))
    loss.backward()
    assert loss.item() == 0
    assert statistics.label_entropy == 0
    assert all(map(torch.isfinite, vars(statistics).values()))


@pytest.mark.parametrize("labelled", [0, 1, 20])
@pytest.mark.parametrize("memory", [0, 300])
def test_the_step_reports_what_it_minimises(labelled, memory):
    heads = make_heads((N, 4))
    loss, statistics, starts = run_step(heads, make_batch(labelled=labelled, memory=memory))
    total = statistics.swapped_loss + 0.5 * statistics.supervised_loss
    assert loss.item() == pytest.approx(total.item(), rel=1e-5)
    assert (statistics.supervised_loss == 0) == (labelled == 0)
    assert statistics.share_error <= 1e-3
    assert [[len(start) for start in view] for view in starts] == [[K + N, K + 4]] * 2


def test_alpha_weighs_the_supervised_term_from_zero_up():
    batch = make_batch()
    without, statistics, _ = run_step(make_heads(), batch, alpha=0.0)
    double, _, _ = run_step(make_heads(), batch, alpha=2.0)
    assert without.item() == pytest.approx(statistics.swapped_loss.item(), rel=1e-5)
    assert (double - without).item() == pytest.approx(
        2 * statistics.supervised_loss.item(), rel=1e-4
    )


def balanced(logits: Tensor) -> Tensor:
    """The assignment that a step with the default labelling should find."""
    num_regions, num_classes = logits.shape
    shares = class_shares(num_classes, "lognormal", sigma=0.5, num_regions=num_regions)
    ordered = order_shares(shares, logits.softmax(1).sum(0), order="mass")
    return accelerated_sinkhorn(
        logits, ordered, sharpness=10.0, tolerance=1e-3, max_rounds=500
    ).assignment


def test_pseudo_labels_are_the_balanced_assignment_of_batch_and_memory():
    heads, batch = make_heads(), make_batch()
    rows = torch.cat([batch["batch"].views[0], batch["memories"][0]])
    with torch.no_grad():
        logits = copy.deepcopy(heads)(rows)[0]  # training mode: the rows' own statistics
    expected = balanced(logits)
    (made,) = pseudo_labels(
        heads,
        batch["batch"].views[0],
        batch["memories"][0],
        labelling=Labelling(),
        starts=[None],
        seed=0,
    )
    torch.testing.assert_close(made.targets, expected[:40], atol=1e-3, rtol=1e-2)
    used = (logits.softmax(1).sum(0)[K:] >= 1).sum()
    assert made.num_used == used


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_flow_into_the_heads_and_nowhere_else(kind):
    heads, batch = make_heads((N, 4)), make_batch()
    for tensor in (*batch["batch"].views, *batch["memories"], batch["batch"].labelled):
        tensor.requires_grad_()
    loss, _, starts = run_step(heads, batch, labelling=Labelling(kind=kind))
    assert not any(start.requires_grad for view in starts for start in view if start is not None)
    loss.backward()
    for name, parameter in heads.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.abs().sum() > 0, name
    assert all(memory.grad is None for memory in batch["memories"])


def test_pseudo_labels_carry_no_gradient_and_leave_the_heads_as_they_were():
    heads, batch = make_heads(), make_batch()
    before = copy.deepcopy(heads.state_dict())
    (made,) = pseudo_labels(
        heads,
        batch["batch"].views[0],
        batch["memories"][0],
        labelling=Labelling(),
        starts=[None],
        seed=0,
    )
    assert not made.targets.requires_grad
    assert all(torch.equal(value, before[name]) for name, value in heads.state_dict().items())


def test_a_step_moves_the_running_statistics_once_and_by_the_taught_rows():
    heads, batch = make_heads(), make_batch()
    run_step(heads, batch)
    expected = make_heads()
    expected(torch.cat([*batch["batch"].views, batch["batch"].labelled]))
    norm, expected_norm = heads.novel[0].projection[1], expected.novel[0].projection[1]
    assert norm.num_batches_tracked == 1
    torch.testing.assert_close(norm.running_mean, expected_norm.running_mean)
    torch.testing.assert_close(norm.running_var, expected_norm.running_var)


def test_the_memory_changes_the_labels_and_its_rows_are_not_taught():
    batch = make_batch()
    options: dict[str, Any] = {"labelling": Labelling(), "starts": [None], "seed": 0}
    heads = make_heads()
    (with_memory,) = pseudo_labels(heads, batch["batch"].views[0], batch["memories"][0], **options)
    (without,) = pseudo_labels(heads, batch["batch"].views[0], torch.empty(0, F), **options)
    assert with_memory.targets.shape == without.targets.shape == (40, K + N)
    assert (with_memory.targets - without.targets).abs().max() > 0.01


def test_the_swap_decides_who_teaches_whom():
    batch = make_batch()
    batch["batch"].views = (batch["batch"].views[0], clustered_features(40, seed=5)[0])
    swapped, _, _ = run_step(make_heads(), batch)
    alone, _, _ = run_step(make_heads(), batch, labelling=Labelling(swap=False))
    assert alone.item() < swapped.item()  # the second view shows other regions


def test_the_next_step_starts_where_this_one_ended():
    heads, batch = make_heads(), make_batch()
    _, cold, starts = run_step(heads, batch)
    _, warm, _ = run_step(heads, batch, starts=starts)
    assert warm.num_rounds < cold.num_rounds


def soft_cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    return -(labels * logits.log_softmax(1)).sum(1).mean()


def test_distilled_labels_are_the_other_views_and_the_loss_balances_them():
    """The whole loss, from the heads in evaluation mode: rows do not change each other."""
    heads, batch = make_heads().eval(), make_batch()
    views, memories = batch["batch"].views, batch["memories"]
    logits = [heads.logits(view) for view in views]
    labels = [view.softmax(1) ** 2.5 for view in logits]
    labels = [view / view.sum(1, keepdim=True) for view in labels]
    taught = 0.5 * (
        soft_cross_entropy(logits[0], labels[1]) + soft_cross_entropy(logits[1], labels[0])
    )
    balance, errors = 0.0, []
    for view, memory in zip(views, memories, strict=True):
        mean = heads.probabilities(torch.cat([view, memory])).mean(0)
        shares = class_shares(K + N, "lognormal", sigma=0.5, num_regions=340)
        shares = order_shares(shares, mean, order="mass")
        balance += 0.5 * BALANCE_WEIGHT * (mean * (mean / shares).log()).sum().item()
        errors.append((mean - shares).abs().sum().item())
    _, statistics, starts = run_step(heads, batch, labelling=Labelling(kind="distilled"))
    assert statistics.swapped_loss.item() == pytest.approx(taught.item() + balance, rel=1e-4)
    assert statistics.share_error.item() == pytest.approx(sum(errors) / 2, rel=1e-4)
    assert starts == [[None], [None]]


@pytest.mark.parametrize("order", ["random", "mass", "fixed"])
def test_the_seed_matters_to_the_random_order_alone(order):
    labelling = Labelling(order=order)
    losses = [
        run_step(make_heads(), make_batch(), labelling=labelling, seed=seed)[1].swapped_loss
        for seed in (0, 0, 1)
    ]
    same = [abs(losses[0] - other) < 1e-2 * losses[0] for other in losses[1:]]
    assert same == [True, order != "random"]


ABLATIONS: dict[str, dict[str, Any]] = {
    "kmeans": {"labelling": Labelling(kind="kmeans")},
    "distilled": {"labelling": Labelling(kind="distilled")},
    "uniform": {"labelling": Labelling(prior="uniform")},
    "random": {"labelling": Labelling(order="random")},
    "fixed": {"labelling": Labelling(order="fixed")},
    "no swap": {"labelling": Labelling(swap=False)},
    "no supervision": {"alpha": 0.0},
}


@pytest.mark.parametrize("name", ABLATIONS)
@pytest.mark.parametrize(
    "options",
    [{}, {"classifier": "linear"}, {"projection": False}],
    ids=["mlp", "linear", "no mlp"],
)
def test_every_setting_learns(name, options):
    torch.manual_seed(0)
    heads, batch = make_heads(**options), make_batch()
    optimizer = torch.optim.SGD(heads.parameters(), lr=0.05, momentum=0.9)
    starts, losses = None, []
    for step in range(20):
        loss, statistics, starts = run_step(
            heads, batch, starts=starts, seed=step, **ABLATIONS[name]
        )
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        heads.normalise_prototypes()
        losses.append(loss.item())
        assert all(map(torch.isfinite, vars(statistics).values()))
    assert sum(losses[-5:]) < 0.9 * sum(losses[:5])


@pytest.mark.parametrize("kind", KINDS)
def test_discovery_finds_the_clusters_of_an_easy_world(kind):
    heads, batch = make_heads(), make_batch(batch=200)
    known = clustered_features(400, seed=7)
    is_known = known[1] < K
    batch["batch"].labelled, batch["batch"].labels = known[0][is_known], known[1][is_known]
    optimizer = torch.optim.SGD(heads.parameters(), lr=0.1, momentum=0.9)
    starts = None
    for step in range(40):
        loss, statistics, starts = run_step(
            heads, batch, labelling=Labelling(kind=kind), starts=starts, seed=step
        )
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        heads.normalise_prototypes()
    features, truth = clustered_features(500, seed=3)
    with torch.no_grad():
        predicted = heads.eval().probabilities(features).argmax(1)
    assert (predicted[truth < K] == truth[truth < K]).float().mean() > 0.9
    table = torch.zeros(K + N, K + N).index_put_(
        (predicted, truth), torch.ones(500), accumulate=True
    )
    assert table.amax(1).sum() / 500 > 0.7  # purity
    assert statistics.clusters_in_use >= 7


def made_at(log_scalings):
    zero = torch.zeros(())
    return PseudoLabels(torch.zeros(0, 2), log_scalings, zero, zero, zero)


def test_the_second_view_starts_where_the_first_one_ended_at_first():
    now = torch.tensor([1.0, 2.0])
    assert _moved_alike([], [], []) == []
    assert _moved_alike([None], [made_at(None)], [None]) == [None]
    assert _moved_alike([None], [made_at(now)], [None]) == [now]


def test_the_second_view_then_starts_from_its_own_end_moved_like_the_first():
    first, second = torch.tensor([1.0, -1.0]), torch.tensor([1.5, -1.5])
    (start,) = _moved_alike([second], [made_at(torch.tensor([3.0, -3.0]))], [first])
    assert start is not None
    assert start.tolist() == [3.5, -3.5]


def taught_batch(num_rows: int, *, untaught: int = 0, num_heads: int = 1) -> DiscoveryBatch:
    features, labels = clustered_features(num_rows)
    matched, classes = clustered_features(12, seed=2)
    labels[:untaught] = UNTAUGHT
    targets = labels[:, None].repeat(1, num_heads)
    return DiscoveryBatch((features, features), matched, classes % K, targets)


@pytest.mark.parametrize("untaught", [0, 5])
def test_no_region_that_the_teacher_knows_teaches_nothing(untaught):
    heads = make_heads(background=True)
    loss, statistics = taught_step(heads, taught_batch(untaught, untaught=untaught), alpha=0.0)
    loss.backward()
    assert loss.item() == 0
    assert all(value.isfinite() for value in vars(statistics).values())


def test_heads_learn_what_the_teacher_says_and_regions_without_a_label_say_nothing():
    heads = make_heads((N, N), background=True)
    batch = taught_batch(200, untaught=20, num_heads=2)
    assert batch.targets is not None
    batch.targets[batch.targets == K + N - 1] = K + N  # what lies around one centre is no object
    optimizer = torch.optim.Adam(heads.parameters(), 0.01)
    for _ in range(100):
        optimizer.zero_grad()
        taught_step(heads, batch, alpha=0.0)[0].backward()
        optimizer.step()
    for head in range(2):
        found = heads.logits(batch.views[0], head).argmax(1)
        assert (found[20:] == batch.targets[20:, head]).float().mean() > 0.9


def test_views_and_annotations_count_as_the_weights_say():
    heads, batch = make_heads(background=True).eval(), taught_batch(30, untaught=10)
    assert batch.targets is not None
    loss, statistics = taught_step(heads, batch, alpha=0.5)
    own = torch.nn.functional.cross_entropy(
        heads.logits(batch.views[0][10:]), batch.targets[10:, 0]
    )
    known = torch.nn.functional.cross_entropy(heads.logits(batch.labelled), batch.labels)
    torch.testing.assert_close(loss, own + 0.5 * known)
    torch.testing.assert_close(statistics.swapped_loss, own)
