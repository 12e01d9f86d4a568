"""Batches on their way to a GPU."""

import torch

from rncdl.data.batch_loader import Batch
from rncdl.data.datasets import BadImage
from rncdl.data.samples import unlabelled_sample
from rncdl.data.viewed_images import ViewedImage
from rncdl.data.views import View


def test_every_tensor_of_a_batch_is_pinned_and_nothing_else_changes(monkeypatch):
    pinned: list[int] = []

    def pin(tensor: torch.Tensor) -> torch.Tensor:
        pinned.append(id(tensor))
        return tensor

    monkeypatch.setattr(torch.Tensor, "pin_memory", pin)
    pixels = torch.zeros(3, 4, 4, dtype=torch.uint8)
    sample = unlabelled_sample(pixels, image_index=3, path="a.png")
    view = View(pixels.clone(), 1.0, 1.0, flipped=False, distorted=False)
    bad = BadImage("b.png", "broken")
    batch = Batch([sample], [bad]).pin_memory()
    assert batch == Batch([sample], [bad])
    assert set(pinned) == {id(sample.image), id(sample.boxes_xyxy), id(sample.labels)}
    viewed = ViewedImage(
        image_index=0,
        path="c.png",
        plain=pixels,
        plain_scale_xy=(1.0, 1.0),
        views=[view],
        boxes_xyxy=sample.boxes_xyxy,
        labels=sample.labels,
    )
    again = Batch([viewed]).pin_memory().samples[0]
    assert again.views[0].image is view.image
    assert id(view.image) in pinned
