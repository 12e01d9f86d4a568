"""The object bank: what the teacher has seen of the pool's objects, beside the bank of regions."""

from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from rncdl.config import Settings
from rncdl.data.viewed_images import Pool, ViewedImages
from rncdl.detector.locating import Search
from rncdl.detector.model import Detector
from rncdl.discovery.bank import Bank, BankShape
from rncdl.discovery.filling import Filling, bank_origin, fill_bank
from rncdl.discovery.object_views import Masks, ObjectChoice, ObjectFinder
from rncdl.discovery.recipe import BankRecipe
from rncdl.discovery.showing import sample_annotated, separations
from rncdl.discovery.teacher import FoundTeacher, Teacher, find_teacher, load_teacher
from rncdl.errors import UserError
from rncdl.origins import digest
from rncdl.run_folder import RunFolder
from rncdl.segmentation.segmenter import open_segmenter
from rncdl.training.processes import Processes
from rncdl.training.progress import say

MOST_ANNOTATED = 64
"""Annotated objects of an image that the teacher looks at."""
_HOW_SHOWN: dict[Masks, str] = {
    "none": "with what lies around them",
    "own": "cut out by the mask head",
    "segmenter": "cut out by the segmenter",
    "both": "cut out by mask head or segmenter",
}
_PROPOSALS_PER_OBJECT = 4
"""After the RPN's own NMS; several lie on each object until they are refined."""


class Way(NamedTuple):
    """A way of showing objects to the teacher."""

    masks: Masks
    outlines: bool

    def in_words(self) -> str:
        """What is shown."""
        return _HOW_SHOWN[self.masks] + (" and as outlines" if self.outlines else "")


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
    recipe = BankRecipe.from_settings(settings)
    dataset = recipe.view_images(pool, on_bad_image=settings.data.on_bad_image, num_views=0)
    showing = _Showing(detector, load_teacher(found, detector), settings)
    way = processes.from_main(partial(_settle_way, folder, showing, pool, dataset))
    choice = showing.choice(way)
    finder = showing.finder(way)
    filling = Filling(
        title="objects",
        shape=BankShape(
            num_images=len(pool),
            num_labelled=pool.num_labelled,
            num_views=1,
            regions_per_image=settings.teacher.objects_per_image,
            matched_per_image=MOST_ANNOTATED,
            num_features=finder.num_features,
        ),
        origin=_origin(run, pool, settings, found, choice),
        dataset=dataset,
        item_seed=recipe.item_seed,
        extract=finder.look,
    )
    return fill_bank(folder, filling, pool, settings=settings, processes=processes)


def open_showing(
    detector: Detector, pool: Pool, settings: Settings
) -> tuple[ViewedImages, ObjectFinder]:
    """The pool's images, and what shows their objects to the teacher, in the costliest way."""
    found = find_teacher(settings.discover.teacher, settings.teacher)
    recipe = BankRecipe.from_settings(settings)
    showing = _Showing(detector, load_teacher(found, detector), settings)
    ways = possible_ways(settings, has_masks=detector.mask_head is not None)
    dataset = recipe.view_images(pool, on_bad_image="skip", num_views=0)
    return dataset, showing.finder(ways[-1])


@dataclass(frozen=True)
class _Showing:
    """What may be an object is found, and shown to a teacher."""

    detector: Detector
    teacher: Teacher
    settings: Settings

    def choice(self, way: Way) -> ObjectChoice:
        predict, teacher = self.settings.predict, self.settings.teacher
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
            masks=way.masks,
            crop_px=teacher.crop_px,
            padding=teacher.padding,
            outlines=way.outlines,
        )

    def finder(self, way: Way) -> ObjectFinder:
        choice = self.choice(way)
        segmenter = None
        if _segments(choice):
            segmenter = open_segmenter(self.settings.segmentation, self.detector.device)
        return ObjectFinder(self.detector, self.teacher, segmenter, choice)


def _settle_way(folder: Path, showing: _Showing, pool: Pool, dataset: ViewedImages) -> Way:
    """How objects are shown: as the bank that is there has noted, or as known ones tell."""
    has_masks = showing.detector.mask_head is not None
    ways = possible_ways(showing.settings, has_masks=has_masks)
    if len(ways) == 1:
        return ways[0]
    if Bank.exists(folder):
        bank = Bank(folder)
        bank.close()
        noted = (bank.origin.get("masks"), bank.origin.get("outlines", False))
        if noted in ways:
            return ways[ways.index(noted)]
    found = separations([showing.finder(way) for way in ways], sample_annotated(pool, dataset))
    best = ways[found.index(max(found))]
    told = " and ".join(
        f"{100 * share:.1f} % {way.in_words()}" for way, share in zip(ways, found, strict=True)
    )
    say(f"Objects are shown to the teacher {best.in_words()}: of known pairs it tells {told}.")
    return best


def possible_ways(settings: Settings, *, has_masks: bool) -> list[Way]:
    """How objects may be shown, of what the settings allow and there is; the costliest last."""
    wanted = settings.teacher.outlines
    with_outlines = [False, True] if wanted == "auto" else [wanted]
    return [
        Way(masks, outlines)
        for masks in possible_masks(settings, has_masks=has_masks)
        for outlines in (with_outlines if masks != "none" else [False])
    ]


def possible_masks(settings: Settings, *, has_masks: bool) -> list[Masks]:
    """What objects may be cut out by, of what the settings allow and there is."""
    wanted = settings.teacher.masks
    has_segmenter = settings.segmentation.segmenter != "none"
    if wanted == "segmenter" and not has_segmenter:
        raise UserError(
            "teacher.masks=segmenter needs one: say segmentation.segmenter=grabcut, or "
            "teacher.masks=auto."
        )
    if wanted in ("segmenter", "none"):
        return [wanted]
    cut: list[Masks] = ["own"] if has_masks else []
    if has_segmenter and wanted != "own":
        cut = ["both" if has_masks else "segmenter"]
    return ["none", *cut] if wanted == "auto" or not cut else cut


def _segments(choice: ObjectChoice) -> bool:
    return choice.masks in ("both", "segmenter")


def _origin(
    run: RunFolder, pool: Pool, settings: Settings, found: FoundTeacher, choice: ObjectChoice
) -> dict[str, Any]:
    """Everything an object bank depends on: not the seed, nor the views of discovery."""
    noted = bank_origin(run, pool, settings)
    described = asdict(choice)
    if not choice.outlines:  # as in the banks of earlier versions
        del described["outlines"]
    shared = ("images", "labels", "precision", "long_side_px", "eval_short_side_px")
    weights = settings.segmentation.sam_weights
    return {
        **{name: value for name, value in noted.items() if name.startswith("detector")},
        **{name: noted[name] for name in shared},
        **described,
        **found.noted(),
        "certainty": "predicted iou" if settings.detector.localisation else "mask",
        "segmenter": settings.segmentation.segmenter if _segments(choice) else "none",
        "sam_weights": None if weights is None else digest(weights.read_bytes()),
    }
