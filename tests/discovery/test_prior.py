import pytest
import scipy.stats
import torch

from rncdl.discovery.prior import class_shares, order_shares


def lognormal_shares(num_classes: int, num_regions: int = 10**9, sigma: float = 0.5):
    return class_shares(num_classes, "lognormal", sigma=sigma, num_regions=num_regions)


def test_one_class_gets_everything():
    assert lognormal_shares(1).tolist() == [1.0]
    assert class_shares(1, "uniform", sigma=0.5, num_regions=1).tolist() == [1.0]


@pytest.mark.parametrize("num_classes", [2, 79, 3080])
def test_lognormal_shares_are_the_quantiles_of_the_distribution(num_classes):
    levels = 1 - (torch.arange(num_classes).double() + 0.5) / num_classes
    quantiles = scipy.stats.lognorm.ppf(levels.numpy(), s=0.5, scale=torch.e)
    expected = torch.from_numpy(quantiles / quantiles.sum()).float()
    torch.testing.assert_close(lognormal_shares(num_classes), expected, rtol=1e-5, atol=1e-9)


@pytest.mark.parametrize("num_regions", [1, 50, 100, 150, 400, 20_200])
@pytest.mark.parametrize("sigma", [0.5, 2.0])
def test_every_class_gets_a_region_where_there_are_enough(num_regions, sigma):
    shares = lognormal_shares(100, num_regions, sigma)
    assert shares.sum().item() == pytest.approx(1, abs=1e-6)
    assert (shares.diff() <= 0).all()
    assert shares.min().item() >= 1 / max(num_regions, 100) * (1 - 1e-6)
    if num_regions <= 100:
        torch.testing.assert_close(shares, torch.full((100,), 0.01))


def test_the_floor_leaves_the_proportions_above_it():
    free, floored = lognormal_shares(100, sigma=2), lognormal_shares(100, 1000, sigma=2)
    above = floored > 0.001 * 1.0001
    assert 10 < above.sum() < 90
    ratio = floored[above] / free[above]
    torch.testing.assert_close(ratio, ratio[:1].expand_as(ratio))


def test_uniform_shares_are_equal():
    shares = class_shares(4, "uniform", sigma=0.5, num_regions=100)
    assert shares.tolist() == [0.25] * 4


def test_mass_order_has_rank_correlation_one():
    shares = lognormal_shares(200)
    mass = torch.rand(200, generator=torch.Generator().manual_seed(0))
    dealt = order_shares(shares, mass, order="mass")
    assert scipy.stats.spearmanr(mass, dealt).statistic == pytest.approx(1)
    assert torch.equal(dealt.sort(descending=True).values, shares)


def test_random_order_is_a_permutation_by_the_generator():
    shares, mass = lognormal_shares(200), torch.zeros(200)

    def draw(seed: int) -> torch.Tensor:
        generator = torch.Generator().manual_seed(seed)
        return order_shares(shares, mass, order="random", generator=generator)

    assert torch.equal(draw(0), draw(0))
    assert not torch.equal(draw(0), draw(1))
    assert torch.equal(draw(0).sort(descending=True).values, shares)


def test_fixed_order_leaves_the_shares_where_they_are():
    shares = lognormal_shares(5)
    assert torch.equal(order_shares(shares, torch.arange(5.0), order="fixed"), shares)
