"""The whole detector as one function of one image of any size, in operations that ONNX has.

What `rncdl.prediction.detecting.detect` does to a batch, without anything that tracing would freeze
at the size of the image that is looked at while it traces.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.onnx import register_custom_op_symbolic
from torch.onnx.symbolic_helper import parse_args
from torchvision.models.detection._utils import _topk_min
from torchvision.ops import nms as suppress
from torchvision.ops import roi_align

from rncdl.detector.backbone_blocks import STRIDES_PX
from rncdl.detector.boxes import (
    ANCHOR_CODER,
    REGION_CODER,
    cell_anchors,
    clip_boxes,
    has_area,
    level_anchors,
)
from rncdl.detector.locating import likelihood
from rncdl.detector.mask_boxes import looked_at, move_to_masks
from rncdl.detector.model import BOX_POOL, MASK_POOL, PYRAMID_STRIDES_PX, ImageBatch
from rncdl.detector.pooling import assign_levels
from rncdl.prediction.inference import limits_of
from rncdl.prediction.predictor import Predictor

OPSET = 17
_LOWEST = torch.finfo(torch.float32).min


class ImageToDetections(nn.Module):
    """From an image (height, width, 3) uint8 RGB to its D detections, the best first.

    Boxes (D, 4) x0, y0, x1, y1 in the image's pixels; scores (D,); labels (D,) int64; with a mask
    head also masks (D, 28, 28), probabilities laid over the boxes.
    """

    wanted: Tensor | None

    def __init__(self, predictor: Predictor) -> None:
        super().__init__()
        self.detector = predictor.detector
        self.classifier = predictor.classifier
        # Registered, for what is traced may hold no weights but a module's own.
        parts = vars(predictor.classifier).values()
        self.parts = nn.ModuleList(part for part in parts if isinstance(part, nn.Module))
        self.register_buffer("wanted", predictor.classifier.wanted)
        self.data = predictor.settings.data
        self.limits = limits_of(predictor.settings.predict)

    def forward(self, image: Tensor) -> tuple[Tensor, ...]:
        """(boxes, scores, labels) or (boxes, scores, labels, masks)."""
        given_hw = torch._shape_as_tensor(image)[:2]
        size_hw = network_size(
            given_hw,
            short_side_px=self.data.eval_short_side_px,
            long_side_px=self.data.long_side_px,
        )
        pixels = self._prepare(resize(image.permute(2, 0, 1).float(), given_hw, size_hw), size_hw)
        maps = self.detector.feature_maps(ImageBatch(pixels, []))
        boxes, objectness = self._propose(maps, size_hw)
        boxes, features, objectness, fit = self._refine(maps, boxes, objectness, size_hw)
        probabilities = self.classifier.probabilities(
            features, batch=ImageBatch(pixels, []), boxes=[boxes]
        )
        scores = self.classifier.scores(probabilities, objectness, fit)
        rows, labels, best = self._choose(boxes, scores)
        chosen = boxes[rows]
        stretch = (given_hw.double() / size_hw.double()).flip(0).repeat(2).float()
        found = (chosen * stretch, best, labels)
        if self.detector.mask_head is None:
            return found
        return (*found, self._mask_logits(maps, chosen).sigmoid())

    def _prepare(self, pixels: Tensor, size_hw: Tensor) -> Tensor:
        """(1, 3, H, W) normalised, and padded at right and bottom as the network needs it."""
        mean, std = self.detector.pixel_mean[:, None, None], self.detector.pixel_std[:, None, None]
        missing = torch.remainder(-size_hw, self.detector.size_divisor)
        # Tensors where the hints ask for int, which tracing would freeze.
        right_bottom = (0, missing[1], 0, missing[0])
        return functional.pad(((pixels - mean) / std)[None], right_bottom)  # type: ignore[arg-type]

    def _propose(self, maps: Sequence[Tensor], size_hw: Tensor) -> tuple[Tensor, Tensor]:
        """Boxes (P, 4) and objectness (P,) of the RPN's best, the best first."""
        search, settings = self.limits.search, self.detector.settings
        pyramid = list(maps[: len(PYRAMID_STRIDES_PX)])
        per_level = zip(
            pyramid,
            *self.detector.rpn_head(pyramid),
            PYRAMID_STRIDES_PX,
            settings.anchor_sizes_px,
            strict=True,
        )
        boxes, logits, levels = [], [], []
        for level, (level_map, level_logits, deltas, stride, size) in enumerate(per_level):
            anchors = level_anchors(
                *level_map.shape[2:],
                stride_px=stride,
                around=cell_anchors(size, settings.anchor_ratios),
            )
            flat = level_logits.permute(0, 2, 3, 1).reshape(-1)
            best, rows = flat.topk(_topk_min(flat, search.before_nms, 0))
            offsets = deltas.permute(0, 2, 3, 1).reshape(-1, 4)[rows]
            boxes.append(ANCHOR_CODER.decode_single(offsets, anchors[rows]))
            logits.append(best)
            levels.append(torch.full_like(best, level))
        clipped = clip_boxes(torch.cat(boxes), size_hw)
        usable = _rows_of(has_area(clipped))
        return _best_proposals(
            clipped[usable],
            torch.cat(logits)[usable],
            torch.cat(levels)[usable],
            nms=search.nms,
            count=search.per_image,
        )

    def _refine(
        self, maps: Sequence[Tensor], boxes: Tensor, objectness: Tensor, size_hw: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        """The boxes moved and kept apart as the settings say, and the features before that.

        With them come the objectness and the predicted IoU, if any, of those that are kept.
        """
        search = self.limits.search
        features = torch.empty(0)
        for _ in range(search.refinements):
            features = self.detector.box_head(self._pool(maps, boxes, BOX_POOL))
            moved = REGION_CODER.decode_single(self.detector.box_regressor(features), boxes)
            boxes = clip_boxes(moved, size_hw)
        fit = self.detector.predict_iou(features)
        if search.region_nms is not None:
            _, rows = suppress_within_classes(
                boxes,
                likelihood(objectness, fit)[None],
                nms=search.region_nms,
                min_score=_LOWEST,
                most_per_class=search.per_image,
            )
            boxes, features, objectness = boxes[rows], features[rows], objectness[rows]
            fit = None if fit is None else fit[rows]
        if search.mask_share > 0 and self.detector.mask_head is not None:
            shown = looked_at(boxes, size_hw)
            masks = self._mask_logits(maps, shown) > 0
            boxes = move_to_masks(boxes, masks, shown, share=search.mask_share)
        return boxes, features, objectness, fit

    def _choose(self, boxes: Tensor, scores: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Row, label and score (D,) of the best detections after NMS within each class."""
        limits = self.limits
        if self.wanted is not None:
            scores = scores * self.wanted
        usable = _rows_of(has_area(boxes))
        labels, rows = suppress_within_classes(
            boxes[usable],
            scores[usable].T,
            nms=limits.nms,
            min_score=limits.min_score,
            most_per_class=limits.max_detections,
        )
        rows = usable[rows]
        kept = scores[rows, labels]
        best, order = kept.topk(_topk_min(kept, limits.max_detections, 0))
        return rows[order], labels[order], best

    def _mask_logits(self, maps: Sequence[Tensor], boxes: Tensor) -> Tensor:
        pixels = None
        if self.detector.mask_detail is not None:
            in_first_image = functional.pad(boxes, (1, 0))
            pixels = self.detector.pool_pixels(maps, in_first_image)
        return self.detector.logits_of_pooled(self._pool(maps, boxes, MASK_POOL), pixels)

    def _pool(self, maps: Sequence[Tensor], boxes: Tensor, size: int) -> Tensor:
        """(R, channels, size, size), each level's boxes by RoIAlign, in the order of the boxes."""
        settings = self.detector.settings
        levels = assign_levels(
            boxes, reference_px=settings.roi_reference_px, num_levels=len(STRIDES_PX)
        )
        pooled, order = [], []
        for level, stride in enumerate(STRIDES_PX):
            rows = _rows_of(levels == level)
            in_first_image = functional.pad(boxes[rows], (1, 0))
            pooled.append(
                roi_align(
                    maps[level],
                    in_first_image,
                    size,
                    spatial_scale=1 / stride,
                    sampling_ratio=settings.roi_sampling_ratio,
                    aligned=True,
                )
            )
            order.append(rows)
        in_order = torch.cat(pooled).index_select(0, torch.cat(order).argsort())
        return in_order.reshape(-1, settings.fpn_channels, size, size)


def network_size(given_hw: Tensor, *, short_side_px: int, long_side_px: int) -> Tensor:
    """(2,) int64: what `rncdl.data.transforms.resized_size` gives, of a height and width (2,)."""
    sides = given_hw.double()
    # Vectors of one: the exporter divides scalars in float32.
    scale = torch.minimum(
        short_side_px / sides.amin(0, keepdim=True), long_side_px / sides.amax(0, keepdim=True)
    )
    return (sides * scale + 0.5).floor().clamp(min=1).long()


def resize(pixels: Tensor, given_hw: Tensor, size_hw: Tensor) -> Tensor:
    """Pixels (3, H, W), whole numbers, at another size: bilinear, antialiased, whole again.

    As torchvision resizes bytes, to the last bit on CPUs with AVX2: first across, then down, with
    weights of 16 bits, rounded after each. Rounded otherwise, one value in a thousand differs by
    one, which is enough to change a few detections: NMS and masks' ends are no smooth functions.
    """
    across, across_unit = _resampling(given_hw[1], size_hw[1])
    down, down_unit = _resampling(given_hw[0], size_hw[0])
    narrowed = (pixels @ across.T / across_unit + 0.5).floor()
    return (down @ narrowed / down_unit + 0.5).floor()


def _resampling(given: Tensor, size: Tensor) -> tuple[Tensor, Tensor]:
    """(size, given) the weight of each given pixel in each new one, whole numbers; and their unit.

    The unit is the largest power of two with which all weights have 15 bits.
    """
    # Vectors of one: the exporter divides scalars in float32.
    step = given.double()[None] / size.double()[None]
    centres = (_count_to(size) + 0.5) * step
    distances = (_count_to(given) + 0.5 - centres[:, None]).abs()
    weights = (1 - distances / step.clamp(min=1)).clamp(min=0)
    weights = weights / weights.sum(1, keepdim=True)
    units = 2.0 ** torch.arange(23, dtype=torch.float64)
    unit = torch.where(weights.max() * units < 2**15 - 0.5, units, torch.ones_like(units)).max()
    return (weights * unit + 0.5).floor().float(), unit.float()


def _count_to(end: Tensor) -> Tensor:
    """0, 1, ... below a number that tracing is not to freeze, as `int(end)` would."""
    return torch.arange(end).double()  # type: ignore[call-overload]


def _rows_of(mask: Tensor) -> Tensor:
    """Where a mask (R,) is true; without `flatten`, which in ONNX always leaves two axes."""
    return mask.nonzero()[:, 0]


def _best_proposals(
    boxes: Tensor, logits: Tensor, levels: Tensor, *, nms: float | None, count: int
) -> tuple[Tensor, Tensor]:
    """The best boxes and their logits after NMS within each level."""
    if nms is not None:
        is_level = levels == torch.arange(len(PYRAMID_STRIDES_PX))[:, None]
        scores = torch.where(is_level, logits, torch.full_like(logits, _LOWEST))
        _, rows = suppress_within_classes(
            boxes, scores, nms=nms, min_score=_LOWEST, most_per_class=count
        )
        boxes, logits = boxes[rows], logits[rows]
    best, order = logits.topk(_topk_min(logits, count, 0))
    return boxes[order], best


def suppress_within_classes(
    boxes: Tensor, scores: Tensor, *, nms: float, min_score: float, most_per_class: int
) -> tuple[Tensor, Tensor]:
    """Class and row (M,) of what NMS within each class keeps of boxes (R, 4), scores (C, R)."""
    kept = _non_max_suppression(boxes[None], scores[None], most_per_class, nms, min_score)
    return kept[:, 1], kept[:, 2]


@torch.library.custom_op("rncdl::non_max_suppression", mutates_args=())
def _non_max_suppression(
    boxes: Tensor, scores: Tensor, most_per_class: int, nms: float, min_score: float
) -> Tensor:
    """ONNX's operator, which knows of classes: (M, 3) image, class and row of each kept box."""
    kept = [torch.zeros((0, 3), dtype=torch.int64)]
    for label, of_class in enumerate(scores[0]):
        rows = (of_class > min_score).nonzero().flatten()
        best = suppress(boxes[0, rows], of_class[rows], nms)[:most_per_class]
        image_and_label = torch.tensor([0, label]).expand(len(best), 2)
        kept.append(torch.cat([image_and_label, rows[best, None]], 1))
    return torch.cat(kept)


@parse_args("v", "v", "i", "f", "f")
def _as_onnx(
    graph: Any, boxes: Any, scores: Any, most_per_class: int, nms: float, min_score: float
) -> Any:
    limits = (torch.tensor([most_per_class]), torch.tensor([nms]), torch.tensor([min_score]))
    constants = [graph.op("Constant", value_t=limit) for limit in limits]
    return graph.op("NonMaxSuppression", boxes, scores, *constants)


register_custom_op_symbolic("rncdl::non_max_suppression", _as_onnx, OPSET)
