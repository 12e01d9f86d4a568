"""Annotations and detections of one image, ready to be drawn, and the drawings made of them."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from PIL import Image

from rncdl.data.masks import decode_masks, decode_rles
from rncdl.data.records import AnnotationSet
from rncdl.gallery.drawings import Marks, choose_shown, class_colour
from rncdl.regions import Regions


@dataclass(frozen=True)
class Panel:
    """A drawing, its title, and what is on it in words."""

    title: str
    drawing: Image.Image
    alt: str


@dataclass(frozen=True)
class Example:
    """One image, read in one or several ways."""

    panels: Sequence[Panel]
    caption: str


def annotation_marks(truth: AnnotationSet, image_index: int, known: Collection[str]) -> Marks:
    """All annotations of an image."""
    rows = truth.rows_of_image(image_index)
    name_of = {category.id: category.name for category in truth.categories}
    names = [name_of[category_id] for category_id in truth.category_ids[rows].tolist()]
    of_rows = [truth.segmentations[row] for row in range(rows.start, rows.stop)]
    segmentations = [one for one in of_rows if one is not None]
    image = truth.images[image_index]
    complete = len(segmentations) == len(names)
    return Marks(
        boxes_xyxy=truth.boxes_xyxy[rows],
        names=names,
        colours=[class_colour(name, novel=name not in known) for name in names],
        masks=decode_masks(segmentations, image.height, image.width) if complete else None,
    )


def region_marks(
    found: Regions, output_names: Sequence[str], known: Collection[str], *, min_score: float
) -> Marks:
    """The detections of an image that are worth drawing, the best first."""
    assert found.labels is not None
    assert found.scores is not None
    boxes, scores = found.boxes_xyxy.float().cpu().numpy(), found.scores.float().cpu().numpy()
    rows = choose_shown(boxes, scores, min_score=min_score)
    names = [output_names[label] for label in found.labels.cpu().numpy()[rows].tolist()]
    masks = None
    if found.rles and len(rows):
        rles = [found.rles[row] for row in rows.tolist()]
        masks = decode_rles(rles, *rles[0]["size"])
    return Marks(
        boxes_xyxy=boxes[rows],
        names=names,
        colours=[class_colour(name, novel=name not in known) for name in names],
        scores=scores[rows],
        masks=masks,
    )
