"""The object bank: what the teacher has seen of the pool's objects, beside the bank of regions."""

from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal

from rncdl.config import Settings
from rncdl.data.viewed_images import Pool
from rncdl.detector.locating import Search
from rncdl.detector.model import Detector
from rncdl.discovery.bank import Bank, BankShape
from rncdl.discovery.filling import Filling, bank_origin, fill_bank
from rncdl.discovery.object_views import ObjectChoice, ObjectFinder
from rncdl.discovery.recipe import BankRecipe
from rncdl.discovery.teacher import FoundTeacher, find_teacher, load_teacher
from rncdl.errors import UserError
from rncdl.origins import digest
from rncdl.run_folder import RunFolder
from rncdl.segmentation.segmenter import open_segmenter
from rncdl.training.processes import Processes
from rncdl.training.progress import say

MOST_ANNOTATED = 64
"""Annotated objects of an image that the teacher looks at."""
_PROPOSALS_PER_OBJECT = 4
"""After the RPN's own NMS; several lie on each object until they are refined."""


def open_object_bank(
    folder: Path,
    detector: Detector,
    pool: Pool,
    *,
    run: RunFolder,
    settings: Settings,
    processes: Processes,
) -> Bank:
    """The finished bank of the teacher's features: made, completed or reused as it is."""
    found = processes.from_main(lambda: find_teacher(settings.discover.teacher, settings.teacher))
    if processes.is_main:
        say(found.line())
    detector.to(processes.device).eval()
    teacher = load_teacher(found, detector)
    choice = _choice(settings, has_masks=detector.mask_head is not None)
    segmenter = open_segmenter(settings.segmentation) if _segments(choice) else None
    finder = ObjectFinder(detector, teacher, segmenter, choice)
    recipe = BankRecipe.from_settings(settings)
    dataset = recipe.view_images(pool, on_bad_image=settings.data.on_bad_image, num_views=0)
    filling = Filling(
        title="objects",
        shape=BankShape(
            num_images=len(pool),
            num_labelled=pool.num_labelled,
            num_views=1,
            regions_per_image=settings.teacher.objects_per_image,
            matched_per_image=MOST_ANNOTATED,
            num_features=teacher.num_features(settings.teacher.crop_px),
        ),
        origin=_origin(run, pool, settings, found, choice),
        dataset=dataset,
        item_seed=recipe.item_seed,
        extract=finder.look,
    )
    return fill_bank(folder, filling, pool, settings=settings, processes=processes)


def _choice(settings: Settings, *, has_masks: bool) -> ObjectChoice:
    predict, teacher = settings.predict, settings.teacher
    return ObjectChoice(
        search=Search(
            before_nms=predict.proposals_before_nms,
            nms=predict.proposal_nms,
            per_image=min(
                predict.proposals_after_nms, _PROPOSALS_PER_OBJECT * teacher.objects_per_image
            ),
            refinements=predict.refinements,
            mask_share=predict.mask_share,
        ),
        per_image=teacher.objects_per_image,
        masks=_masks(settings, has_masks=has_masks),
        crop_px=teacher.crop_px,
        padding=teacher.padding,
    )


def _masks(settings: Settings, *, has_masks: bool) -> Literal["both", "own", "segmenter", "none"]:
    """What objects are cut out by, of what there is: a mask head, a segmenter, both or neither."""
    wanted = settings.teacher.masks
    has_segmenter = settings.segmentation.segmenter != "none"
    if wanted == "segmenter" and not has_segmenter:
        raise UserError(
            "teacher.masks=segmenter needs one: say segmentation.segmenter=grabcut, or "
            "teacher.masks=own."
        )
    if wanted == "both" and not has_segmenter:
        wanted = "own"
    if wanted in ("both", "own") and not has_masks:
        return "segmenter" if wanted == "both" else "none"
    return wanted


def _segments(choice: ObjectChoice) -> bool:
    return choice.masks in ("both", "segmenter")


def _origin(
    run: RunFolder, pool: Pool, settings: Settings, found: FoundTeacher, choice: ObjectChoice
) -> dict[str, Any]:
    """Everything an object bank depends on: not the seed, nor the views of discovery."""
    noted = bank_origin(run, pool, settings)
    shared = ("images", "labels", "precision", "long_side_px", "eval_short_side_px")
    weights = settings.segmentation.sam_weights
    return {
        **{name: value for name, value in noted.items() if name.startswith("detector")},
        **{name: noted[name] for name in shared},
        **asdict(choice),
        **found.noted(),
        "certainty": "predicted iou" if settings.detector.localisation else "mask",
        "segmenter": settings.segmentation.segmenter if _segments(choice) else "none",
        "sam_weights": None if weights is None else digest(weights.read_bytes()),
    }
