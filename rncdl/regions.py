"""Regions: the record that passes between stages."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from rncdl.data.masks import decode_rles, encode_rle
from rncdl.errors import UserError

if TYPE_CHECKING:
    import supervision as sv


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

    def to_supervision(self) -> "sv.Detections":
        """The same regions for `supervision`; names are under "class_name", as it wants them.

        Its own fields take boxes, masks, scores and labels; `data` has the other columns, under
        their names here, and `metadata` the image's size.
        """
        try:
            import supervision as sv
        except ImportError as error:
            raise UserError(
                "supervision is not installed; `pip install 'rncdl[supervision]'` brings it."
            ) from error
        masks = self.masks
        data: dict[str, Any] = {
            "class_name": None if self.names is None else np.array(self.names, dtype=str),
            "clusters": self.clusters,
            "objectness": _to_array(self.objectness),
            "features": _to_array(self.features),
            "within_cut": _to_array(self.within_cut),
        }
        return sv.Detections(
            xyxy=self.boxes_xyxy.cpu().numpy(),
            mask=None if masks is None else masks.numpy(),
            confidence=_to_array(self.scores),
            class_id=_to_array(self.labels),
            data={key: value for key, value in data.items() if value is not None},
            metadata={} if self.size_hw is None else {"size_hw": self.size_hw},
        )

    @classmethod
    def from_supervision(cls, detections: "sv.Detections") -> "Regions":
        """The regions of `to_supervision`, or of any other detections; sorted from the best."""
        data = detections.data
        masks = None if detections.mask is None else np.asarray(detections.mask, dtype=bool)
        size = detections.metadata.get("size_hw")
        if masks is not None:
            size = masks.shape[1:]
        names, clusters = data.get("class_name"), data.get("clusters")
        regions = cls(
            boxes_xyxy=torch.tensor(detections.xyxy, dtype=torch.float32).reshape(-1, 4),
            scores=_to_tensor(detections.confidence, torch.float32),
            labels=_to_tensor(detections.class_id, torch.int64),
            objectness=_to_tensor(data.get("objectness"), torch.float32),
            features=_to_tensor(data.get("features"), torch.float32),
            rles=None if masks is None else [encode_rle(mask) for mask in masks],
            within_cut=_to_tensor(data.get("within_cut"), torch.bool),
            names=None if names is None else [str(name) for name in names],
            size_hw=None if size is None else (int(size[0]), int(size[1])),
            clusters=None if clusters is None else [tuple(map(int, some)) for some in clusters],
        )
        if regions.scores is None:
            return regions
        return regions[regions.scores.argsort(descending=True, stable=True)]


def _to_array(column: Tensor | None) -> np.ndarray | None:
    return None if column is None else column.detach().cpu().numpy()


def _to_tensor(column: Iterable | None, dtype: torch.dtype) -> Tensor | None:
    return None if column is None else torch.tensor(np.asarray(column)).to(dtype)
