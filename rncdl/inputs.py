"""The datasets that a run is made from."""

from collections.abc import Sequence
from pathlib import Path

from rncdl.classes import ClassSplit
from rncdl.config import Settings
from rncdl.data.annotations import load_annotations, load_images_or_annotations, without_labels
from rncdl.data.readers.recognition import read_dataset
from rncdl.data.records import AnnotationSet, ImageRecord
from rncdl.data.viewed_images import Pool
from rncdl.errors import UserError
from rncdl.run_folder import DiscoveryInputs, RunFolder
from rncdl.training.progress import say


def load_dataset(path: Path, images: Path | None, *, shown: bool) -> AnnotationSet:
    """A dataset, with what had to be mended and other notes said on the screen."""
    loaded = load_annotations(path, images)
    if shown:
        for line in (*loaded.notes, *loaded.problems.lines()):
            say(f"{path.name}: {line}")
    return loaded.annotations


def known_classes(
    path: Path, annotations: AnnotationSet, choice: str | Sequence[str] | None
) -> ClassSplit:
    """The classes that `choice` names (see `ClassSplit.from_names`), which the dataset must have.

    None: all that have annotations. `path`: where the dataset is from.
    """
    require_annotations(path, annotations)
    try:
        split = ClassSplit.from_names(choice) if choice else ClassSplit.from_labelled(annotations)
        split.require_present(annotations)
    except UserError as error:
        raise UserError(f"{path}: {error}") from error
    return split


def require_annotations(path: Path, annotations: AnnotationSet) -> None:
    """Refuse a dataset, read from `path`, without a single annotation."""
    if not len(annotations.annotation_ids):
        raise UserError(f"{path}: no annotation that could be used. {_why_none(path)}")


def _why_none(path: Path) -> str:
    """What became of the annotations of a file of which none can be used."""
    file = read_dataset(path)
    counts = {"images": file.images, "categories": file.categories, "annotations": file.annotations}
    empty = [f"`{name}`" for name, entries in counts.items() if not entries]
    if empty:
        return f"It has no {' and no '.join(empty)}."
    problems = load_annotations(path).problems
    return f"Of its `annotations`: {'; '.join(problems.lines())}."


def load_pool(run: RunFolder, inputs: DiscoveryInputs, *, settings: Settings, shown: bool) -> Pool:
    """The labelled and the unlabelled images of a discovery."""
    images = Path(inputs.images) if inputs.images else None
    labels = run.split().keep_known(load_dataset(Path(inputs.labelled), images, shown=shown))
    unlabelled_images = Path(inputs.unlabelled_images) if inputs.unlabelled_images else None
    records: list[ImageRecord] = []
    for path in inputs.unlabelled:
        loaded = load_images_or_annotations(
            Path(path), unlabelled_images, on_bad_image=settings.data.on_bad_image
        )
        records.extend(without_labels(loaded.annotations).images)
    return Pool(labels, records)


def named_inputs(
    run: RunFolder,
    unlabelled: Sequence[Path],
    *,
    unlabelled_images: Path | None = None,
    labelled: Path | None = None,
    images: Path | None = None,
) -> DiscoveryInputs:
    """The files that were named; the labelled ones are the run's own unless others are."""
    if labelled is None:
        inputs = run.inputs()
        labelled = Path(inputs.labelled)
        images = Path(inputs.images) if inputs.images else None
    return DiscoveryInputs(
        labelled=str(labelled.resolve()),
        images=str(images.resolve()) if images else None,
        unlabelled=tuple(str(path.resolve()) for path in unlabelled),
        unlabelled_images=str(unlabelled_images.resolve()) if unlabelled_images else None,
    )
