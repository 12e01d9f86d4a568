"""Regions: the record that passes between stages."""

from dataclasses import dataclass

import torch
from torch import Tensor

from rncdl.data.masks import decode_rles


@dataclass
class Regions:
    """R regions of one image, in the pixels of the original image.

    Fields that a stage does not produce are None; all that are present have R rows, but for the
    image's size.

    boxes_xyxy: (R, 4) float32.
    scores: (R,) in [0, 1], sorted from the best.
    labels: (R,) int64: 0..K-1 known classes, from K on clusters and what people made of them.
    objectness: (R,) the RPN's logit.
    features: (R, F) box-head features.
    rles: (R,) COCO run-length masks of the image's size: {"size": [h, w], "counts": bytes}.
    within_cut: (R,) bool: whether a region is also among the image's best when no output is left
    out.
    names: (R,) the class's name, or, where nobody gave it one, the cluster's, such as novel_0042.
    size_hw: height and width of the image.
    clusters: (R,) the clusters that the class is made of; none where it was known and nothing was
    added.
    """

    boxes_xyxy: Tensor
    scores: Tensor | None = None
    labels: Tensor | None = None
    objectness: Tensor | None = None
    features: Tensor | None = None
    rles: list[dict] | None = None
    within_cut: Tensor | None = None
    names: list[str] | None = None
    size_hw: tuple[int, int] | None = None
    clusters: list[tuple[int, ...]] | None = None

    def __len__(self) -> int:
        return len(self.boxes_xyxy)

    def __getitem__(self, rows: Tensor) -> "Regions":
        """The chosen rows (index or boolean tensor)."""
        index = rows.nonzero().flatten() if rows.dtype == torch.bool else rows

        def pick(value: Tensor | None) -> Tensor | None:
            return None if value is None else value[index]

        chosen = index.tolist()
        return Regions(
            self.boxes_xyxy[index],
            pick(self.scores),
            pick(self.labels),
            pick(self.objectness),
            pick(self.features),
            None if self.rles is None else [self.rles[i] for i in chosen],
            pick(self.within_cut),
            None if self.names is None else [self.names[i] for i in chosen],
            self.size_hw,
            None if self.clusters is None else [self.clusters[i] for i in chosen],
        )

    @property
    def masks(self) -> Tensor | None:
        """(R, height, width) bool pixels of the image, None without masks.

        Decoded anew each time; hundreds of large masks take much memory, so choose rows first.
        """
        if self.rles is None or self.size_hw is None:
            return None
        return torch.from_numpy(decode_rles(self.rles, *self.size_hw))
