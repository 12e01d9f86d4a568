"""Signs that a training does not learn, while there is still time to stop it."""

from statistics import fmean

_LEAST_READINGS = 8
"""Fewer say nothing about a curve."""
_NOT_FALLEN = 0.97
"""A loss that is above this part of what it was has not fallen."""
_NO_AP = 0.01
"""AP50 below which hardly anything is found."""


class TrainingWatch:
    """Looks at the figures of the supervised phase; each warning is given once."""

    def __init__(self, *, num_steps: int, warmup_steps: int) -> None:
        self._num_steps, self._warmup_steps = num_steps, warmup_steps
        self._losses: list[float] = []
        self._has_warned_of_loss = False
        self._has_warned_of_ap = False

    def see_class_loss(self, step: int, loss: float) -> str | None:
        """A warning where it has not fallen from the warm-up to the middle of the steps.

        The other losses may well stay: the better the proposals, the more boxes are taught.
        """
        if step <= self._warmup_steps or self._has_warned_of_loss:
            return None
        self._losses.append(loss)
        quarter = len(self._losses) // 4
        if 2 * step < self._num_steps or len(self._losses) < _LEAST_READINGS:
            return None
        first, last = fmean(self._losses[:quarter]), fmean(self._losses[-quarter:])
        if last < _NOT_FALLEN * first:
            return None
        self._has_warned_of_loss = True
        return (
            f"the classification loss does not fall ({first:.2f} after the warm-up, {last:.2f} at "
            f"step {step}). Look at the labels first (rncdl prepare check); then try a lower "
            "train.rate, or one ten times as high if the loss hardly moves."
        )

    def see_known_ap(self, step: int, ap50: float) -> str | None:
        """A warning where known classes are still not found in the second half of the steps."""
        if 2 * step < self._num_steps or ap50 >= _NO_AP or self._has_warned_of_ap:
            return None
        self._has_warned_of_ap = True
        return (
            f"known AP does not rise: AP50 is {100 * ap50:.1f} on --val at step {step}. Are its "
            "classes named as in the labelled file? If so, train longer (train.steps), on larger "
            "images (--size), or from pretrained weights (detector.weights)."
        )
