"""What a bank depends on: every setting that changes a number in it."""

from dataclasses import dataclass, fields
from typing import Any, Literal

from rncdl.config import LEARNING_SETTINGS, Augmentation, DetectorSettings, Precision, Settings
from rncdl.data.variation import Variation
from rncdl.data.viewed_images import Pool, ViewedImages
from rncdl.detector.losses import PROPOSAL_NMS, ROI_POSITIVE_IOU
from rncdl.discovery.extraction import RegionChoice


@dataclass(frozen=True)
class BankRecipe:
    """The settings by which regions are chosen and their features computed.

    The code that fills a bank is given these and no others, and all of them are noted with the
    bank: it cannot come to depend on one that is not.
    """

    seed: int
    precision: Precision
    views: int
    augmentation: Augmentation
    regions_per_image: int
    region_nms: float | None
    matched_regions_per_image: int
    proposals_before_nms: int
    short_sides_px: tuple[int, ...]
    long_side_px: int
    eval_short_side_px: int
    flip: float
    detector: DetectorSettings

    @classmethod
    def from_settings(cls, settings: Settings) -> "BankRecipe":
        """What a bank made with these settings depends on."""
        data, discover = settings.data, settings.discover
        return cls(
            seed=settings.seed,
            precision=settings.train.precision,
            views=discover.views,
            augmentation=discover.augmentation,
            regions_per_image=discover.regions_per_image,
            region_nms=discover.region_nms,
            matched_regions_per_image=discover.matched_regions_per_image,
            proposals_before_nms=settings.predict.proposals_before_nms,
            short_sides_px=data.short_sides_px,
            long_side_px=data.long_side_px,
            eval_short_side_px=data.eval_short_side_px,
            flip=data.flip,
            detector=settings.detector,
        )

    def noted(self) -> dict[str, Any]:
        """All of it, by name, as JSON; but not how the detector was taught, its file tells that."""
        own = {field.name: getattr(self, field.name) for field in fields(self)}
        own["short_sides_px"] = list(self.short_sides_px)
        detector: DetectorSettings = own.pop("detector")
        values = detector.model_dump(mode="json", exclude=set(LEARNING_SETTINGS))
        return own | {f"detector.{name}": value for name, value in values.items()}

    def region_choice(self) -> RegionChoice:
        """Which regions of an image are looked at."""
        return RegionChoice(
            per_image=self.regions_per_image,
            nms=self.region_nms,
            matched_per_image=self.matched_regions_per_image,
            matched_iou=ROI_POSITIVE_IOU,
            before_nms=self.proposals_before_nms,
            matched_nms=PROPOSAL_NMS,
            matched_candidates=self.detector.proposals_after_nms,
        )

    def view_images(
        self, pool: Pool, *, on_bad_image: Literal["error", "skip"], num_views: int | None = None
    ) -> ViewedImages:
        """The pool, each image in `num_views` views; None: as many as the bank holds."""
        return ViewedImages(
            pool,
            Variation(self.short_sides_px, self.long_side_px, self.flip, self.augmentation),
            num_views=num_views or self.views,
            plain_short_side_px=self.eval_short_side_px,
            on_bad_image=on_bad_image,
        )

    def item_seed(self, index: int) -> int:
        """Seed of an image's views: they depend on its place in the pool alone."""
        return self.seed * 1_000_003 + index
