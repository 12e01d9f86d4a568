"""Times, sizes and plans in words."""

from collections.abc import Sequence

from rich.table import Table

from rncdl.planning.expectation import HOPELESS_S, Expectation, cures
from rncdl.planning.facts import FEW_EXAMPLES, TINY_OBJECT, DataFacts, MachineFacts
from rncdl.planning.plan import Choice, Plan

_SHOWN = {
    "data.eval_short_side_px": "images resized to (short side, px)",
    "detector.backbone": "backbone",
    "train.steps": "training steps",
    "train.batch_size": "images per step",
    "train.accumulate": "parts of a step",
    "discover.heads": "clusters",
    "discover.steps": "discovery steps",
    "discover.teacher": "teacher of discovery",
    "data.workers": "loading processes",
    "data.cache_mb": "images kept in memory (MB)",
    "data.repeat_threshold": "repeating images of rare classes",
    "data.on_bad_image": "images that cannot be read",
}
"""Choices that a reader should see; the others are in the file."""
_SHOWN_NAMES = 5
_MANY_TINY = 1000
_LARGE_SHARE = 0.3


def in_words(seconds: float) -> str:
    """A time as a person would say it: 40 s, 12 min, 3 h 20 min, 41 days."""
    if seconds < 90:
        return f"{max(1, round(seconds))} s"
    minutes = round(seconds / 60)
    if minutes < 90:
        return f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    if hours < 48:
        return f"{hours} h {minutes} min" if hours < 10 and minutes else f"{hours} h"
    return f"{round(seconds / 86_400)} days"


def gigabytes(num_bytes: float) -> str:
    """As GB with two digits, MB below one tenth."""
    return f"{num_bytes / 1e9:.1f} GB" if num_bytes >= 1e8 else f"{num_bytes / 1e6:.0f} MB"


def plan_table(
    plan: Plan, data: DataFacts, machine: MachineFacts, *, weights: str, expected: Expectation
) -> Table:
    """The plan as it is shown before anything starts."""
    table = Table(title=f"The plan (--size {plan.size})", title_justify="left")
    for column in ("what", "how much", "why"):
        table.add_column(column, overflow="fold")
    table.add_row("labelled", f"{data.num_labelled:,} images", _labelled(data))
    table.add_row("unlabelled", f"{data.num_unlabelled:,} images", "all new classes are found here")
    table.add_row("machine", _machine(machine), f"{gigabytes(machine.memory_bytes)} memory free")
    table.add_row("weights", "", weights, end_section=True)
    for choice in plan.choices:
        if choice.key in _SHOWN:
            table.add_row(_SHOWN[choice.key], _value(choice), f"{choice.reason} ({choice.key})")
    table.add_section()
    table.add_row("train", f"about {in_words(expected.train_s)}", "the detector of known classes")
    table.add_row("bank", f"about {in_words(expected.bank_s)}", "features of regions, made once")
    table.add_row("discover", f"about {in_words(expected.discover_s)}", "clusters of the rest")
    table.add_row("report", f"about {in_words(expected.report_s)}", "one page to look at")
    table.add_row("in all", f"about {in_words(expected.total_s)}", "from a trial of each phase")
    table.add_row("memory", f"about {gigabytes(expected.memory_bytes)}", _free(machine))
    table.add_row("disk", f"about {gigabytes(expected.disk_bytes)}", _free_disk(machine))
    return table


def warnings_of(
    plan: Plan, data: DataFacts, machine: MachineFacts, expected: Expectation
) -> list[str]:
    """What the user should know before it starts."""
    warnings = []
    if expected.total_s > HOPELESS_S:
        warnings.append(
            f"this takes about {in_words(expected.total_s)} here: better take "
            f"{cures(plan.size, machine)}."
        )
    free = machine.memory_bytes
    if expected.memory_bytes > free:
        warnings.append(
            f"it may need {gigabytes(expected.memory_bytes)} of memory, and "
            f"{gigabytes(free)} are free: close other programs or take {cures(plan.size, machine)}."
        )
    if not data.num_unlabelled:
        warnings.append(
            "no --unlabelled images: new classes are looked for in the labelled images alone."
        )
    return [*warnings, *label_warnings(data, plan.settings.data.eval_short_side_px)]


def label_warnings(data: DataFacts, side_px: int) -> list[str]:
    """What is odd about the labels; `side_px`: the short side of the images as they are planned."""
    warnings = []
    if data.rare_classes:
        shown = ", ".join(data.rare_classes[:_SHOWN_NAMES])
        others = len(data.rare_classes) - _SHOWN_NAMES
        more = f" and {others} more" if others > 0 else ""
        warnings.append(
            f"{FEW_EXAMPLES} examples or fewer of {shown}{more}: such classes are hardly learnt. "
            "Label more of them, or name the others with --known."
        )
    num_tiny = round(data.tiny_share * data.num_boxes)
    if num_tiny > _MANY_TINY or data.tiny_share > _LARGE_SHARE:
        warnings.append(
            f"{num_tiny:,} of {data.num_boxes:,} boxes are smaller than "
            f"{TINY_OBJECT * side_px:.0f} px at the planned image size: hardly to be seen. `bbox` "
            "is [x, y, width, height] in pixels; if that is what they are, take a larger --size."
        )
    return warnings


def next_commands(run: str, unlabelled: Sequence[str]) -> list[str]:
    """What to type when the run is done; names as a shell wants them."""
    pool = "".join(f" --unlabelled {path}" for path in unlabelled)
    return [
        f"rncdl name --run {run}   # name, merge and correct the clusters in a browser",
        f"rncdl predict PHOTOS/ --run {run} --out found/ --draw   # find all classes in new images",
        f"rncdl export coco PHOTOS/ --run {run} --out labels/   # or yolo, cvat, label-studio, ...",
        f"rncdl evaluate VAL.json --run {run}   # measure, with a fully labelled file",
        f"rncdl discover --run {run}{pool} --discovery more discover.heads=[100]   # other N",
    ]


def _labelled(data: DataFacts) -> str:
    masks = "with masks" if data.has_masks else "boxes only"
    return f"{data.num_boxes:,} objects of {data.num_known} known classes, {masks}"


def _machine(machine: MachineFacts) -> str:
    name = machine.device if machine.is_gpu else f"CPU, {machine.num_cores} threads"
    return name if machine.num_processes == 1 else f"{name}, {machine.num_processes} processes"


def _value(choice: Choice) -> str:
    value = choice.value
    if isinstance(value, tuple):
        return ", ".join(map(str, value))
    return f"{value:,}" if isinstance(value, int) else str(value)


def _free(machine: MachineFacts) -> str:
    return f"{gigabytes(machine.memory_bytes)} are free"


def _free_disk(machine: MachineFacts) -> str:
    return f"{gigabytes(machine.disk_bytes)} are free"
