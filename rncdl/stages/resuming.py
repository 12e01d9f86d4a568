"""Settings given to a training that goes on: which it can take up, and that it notes them."""

from collections.abc import Set
from functools import partial

from rncdl.config import (
    LEARNING_SETTINGS,
    DetectorSettings,
    Settings,
    TeacherSettings,
    setting_changes,
)
from rncdl.errors import UserError
from rncdl.run_folder import DiscoveryFolder, RunFolder
from rncdl.training.processes import Processes
from rncdl.training.progress import say

_LOSSES = LEARNING_SETTINGS - {"weights", "frozen_blocks", "localisation", "objectness"}
_LOSSES_AND_REGIONS = _LOSSES | {"proposals_after_nms"}

FIXED_IN_TRAINING = frozenset(
    {
        "seed",
        "train.weight_decay",  # comes back with the optimiser's state
        *(f"detector.{name}" for name in set(DetectorSettings.model_fields) - _LOSSES_AND_REGIONS),
    }
)
"""What checkpoints of the supervised phase hold: detector, optimiser, place among the images."""

FIXED_IN_DISCOVERY = frozenset(
    {
        "seed",
        *("discover.heads", "discover.classifier", "discover.projection"),
        *("discover.hidden_width", "discover.projection_width"),
        *("discover.memory_batches", "discover.batch_images", "discover.regions_per_image"),
        *("discover.pseudo_labels", "discover.teacher", "discover.neighbours"),
        *(f"teacher.{name}" for name in TeacherSettings.model_fields),
        *("discover.frozen", "discover.online", "discover.single_phase"),
        *("discover.views", "discover.augmentation", "discover.region_nms"),
        *("discover.matched_regions_per_image", "predict.proposals_before_nms", "train.precision"),
        *("data.short_sides_px", "data.long_side_px", "data.eval_short_side_px", "data.flip"),
        *(f"detector.{name}" for name in set(DetectorSettings.model_fields) - _LOSSES),
    }
)
"""What checkpoints of discovery hold: heads, memories, optimiser; and what its bank depends on."""


def take_up_changes(
    folder: RunFolder | DiscoveryFolder,
    before: Settings,
    now: Settings,
    *,
    fixed: Set[str],
    instead: str,
    processes: Processes,
) -> None:
    """Save the settings that a training goes on with and say what changed: later stages read them.

    Changes of `fixed` settings are refused; `instead`: what to do where they are wanted.
    """
    changes = setting_changes(before, now)
    lines = {key: f"  {key}: {old!r}, now {new!r}" for key, (old, new) in changes.items()}
    refused = [line for key, line in lines.items() if key in fixed]
    if refused:
        raise UserError(
            f"{folder.path}: these settings cannot change in the middle of a training, its "
            f"checkpoints were made with them; leave them as they were, or {instead}:\n"
            + "\n".join(refused)
        )
    if changes:
        processes.from_main(partial(folder.save_settings, now))
        if processes.is_main:
            say(f"Changed from here on, and in {folder.settings_file}:")
            for line in lines.values():
                say(line)
