import torch

from rncdl.detector.locating import likelihood


def test_likelihood_is_finite_and_grows_with_objectness_and_fit():
    objectness = torch.tensor([-5.0, -1.0, 0.0, 4.0])
    alone = likelihood(objectness, None)
    torch.testing.assert_close(alone, 1 / (1 + torch.exp(-objectness)))
    fits = torch.tensor([0.2, 0.8])
    found = torch.stack([likelihood(objectness, fit.expand(4)) for fit in fits])
    assert found.isfinite().all()
    assert (found.diff(dim=0) > 0).all()
    assert (found.diff(dim=1) > 0).all()
    torch.testing.assert_close(found**2, fits[:, None] * alone)
