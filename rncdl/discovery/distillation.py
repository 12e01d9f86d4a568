"""Pseudo-labels by self-distillation, after SimGCD: a view's own probabilities, sharpened."""

from torch import Tensor

BALANCE_WEIGHT = 2.0
"""Of the balance term beside the cross-entropy; SimGCD's lies between 1 and 4."""
_STUDENT_TEMPERATURE = 0.1
_FIRST_TEMPERATURE, _LAST_TEMPERATURE = 0.07, 0.04
"""The labels', SimGCD's values."""
_COOLING_SHARE = 0.15
"""Of the steps, in which the labels' temperature falls from the first to the last."""


def distilled_labels(logits: Tensor, *, sharpness: float) -> Tensor:
    """Soft labels (R, C): softmax(`logits`)^sharpness, each row divided by its sum."""
    return (sharpness * logits).softmax(1)


def sharpness_at(step: int, *, num_steps: int) -> float:
    """The exponent of the labels made in a step, counted from 0: 1.4 at first, soon 2.5.

    It is the ratio of SimGCD's two temperatures. As an exponent of probabilities it treats known
    outputs, which have no temperature, as it treats clusters.
    """
    progress = min(1.0, step / (_COOLING_SHARE * num_steps))
    temperature = _FIRST_TEMPERATURE + (_LAST_TEMPERATURE - _FIRST_TEMPERATURE) * progress
    return _STUDENT_TEMPERATURE / temperature
