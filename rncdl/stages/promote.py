"""`rncdl promote`: what people named, or what was found, becomes labels to train on."""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np

from rncdl.classes import is_found_name
from rncdl.config import Settings
from rncdl.data.viewed_images import Pool
from rncdl.discovery.bank import Bank
from rncdl.discovery.filling import require_origin
from rncdl.errors import UserError
from rncdl.inputs import load_pool
from rncdl.naming.accepting import (
    NewLabel,
    PlacedRegion,
    Surroundings,
    accepted_classes,
    choose_labels,
    class_name,
    given_name,
    keep_best,
    keep_frequent,
)
from rncdl.naming.decisions import Decisions
from rncdl.naming.labels_file import PromotedLabels, write_labels
from rncdl.prediction.inference import Inference, predict_images
from rncdl.prediction.predictor import HeadChoice, Predictor, load
from rncdl.run_folder import RunFolder
from rncdl.training.processes import Processes, join_processes
from rncdl.training.progress import say, warn


@dataclass(frozen=True)
class PromoteOptions:
    """Which regions become labels."""

    min_score: float
    min_per_class: int
    only_placed: bool = False
    unnamed: bool = False
    """clusters that nobody has named or ignored become classes, too"""
    best_share: float = 1.0
    """of the regions of each new class, by score"""


def promote(run_path: Path, out: Path, *, choice: HeadChoice, options: PromoteOptions) -> None:
    """Write a labels file of the run's own labels and of the regions of all named clusters.

    With `options.unnamed`, of those without a name too.
    """
    _require_free(out)
    run = RunFolder(run_path)
    name = run.choose_discovery(choice.discovery)
    if name is None:
        raise UserError(f"{run_path}: no finished discovery to promote; run `rncdl discover`.")
    folder = run.discovery(name)
    inputs = folder.inputs()
    if inputs is None:
        raise UserError(f"{folder.path}: did not note its images, so there are none to label.")
    predictor = load(run_path, discovery=name, head=choice.head, raw=True)
    with join_processes(predictor.settings.device) as processes:
        # Read once for all: people may be deciding at this moment.
        decisions = processes.from_main(partial(folder.decisions, choice.head))
        if not options.unnamed:
            _require_names(run_path, decisions)
        predictor = replace(predictor, classifier=predictor.classifier.decided(decisions))
        pool = load_pool(run, inputs, settings=predictor.settings, shown=processes.is_main)
        name_of = partial(class_name, decisions, known=predictor.known, unnamed=options.unnamed)
        placed = _placed_regions(run, pool, predictor.settings, decisions, name_of)
        own = _look_for_labels(predictor, pool, decisions, placed, options, processes)
        found = [one for share in processes.gather(own) for one in share]
        if not processes.is_main:
            return
        best = keep_best(found, predictor.known, share=options.best_share)
        kept, rare = keep_frequent(best, predictor.known, min_per_class=options.min_per_class)
        _warn_of_rare(rare, options)
        if not kept:
            raise UserError(
                f"No region of a {'' if options.unnamed else 'named '}cluster is left: lower "
                f"--min-score (now {options.min_score}) or --min-per-class (now "
                f"{options.min_per_class})."
            )
        made_with = {
            "made_by": "rncdl promote",
            "run": str(run_path.resolve()),
            "discovery": name,
            "head": choice.head,
            "min_score": options.min_score,
            "min_per_class": options.min_per_class,
            "only_placed": options.only_placed,
            "unnamed": options.unnamed,
            "best_share": options.best_share,
        }
        _require_free(out)
        write_labels(out, PromotedLabels(pool.labels, pool.images, kept, made_with))
        _say_counts(out, kept, pool)


def _require_free(out: Path) -> None:
    if out.exists():
        raise UserError(f"{out} is there already and is not overwritten; choose another --out.")


def _require_names(run_path: Path, decisions: Decisions) -> None:
    if all(given_name(decisions, cluster) is None for cluster in decisions.names):
        raise UserError(
            f"{run_path}: no cluster has a name yet; give some with `rncdl name`, or take all "
            "clusters as classes without one (--unnamed)."
        )


def _warn_of_rare(rare: Mapping[str, int], options: PromoteOptions) -> None:
    """Say which classes are left out, those that nobody has named in one line."""
    unnamed = [name for name in rare if is_found_name(name)]
    why = f"certain enough (--min-per-class {options.min_per_class})."
    for name, count in sorted(rare.items()):
        if name not in unnamed:
            warn(f"{name}: left out, for only {count} of its regions are {why}")
    if unnamed:
        warn(f"{len(unnamed)} clusters without a name: left out, for too few regions are {why}")


def _placed_regions(
    run: RunFolder,
    pool: Pool,
    settings: Settings,
    decisions: Decisions,
    name_of: Callable[[int], str | None],
) -> dict[int, list[PlacedRegion]]:
    """Pool image -> its regions that people have moved, where they are in the bank.

    name_of: the class that a cluster becomes.
    """
    placed: dict[int, list[PlacedRegion]] = {}
    if not decisions.moved:
        return placed
    bank = Bank(run.bank_dir)
    require_origin(bank, run, pool, settings)
    counts = bank.counts()
    for (image, region), cluster in sorted(decisions.moved.items()):
        box = bank.read_boxes(image, count=int(counts[image]))[region].numpy()
        one = PlacedRegion(box, name_of(cluster))
        placed.setdefault(image, []).append(one)
    bank.close()
    return placed


def _look_for_labels(
    predictor: Predictor,
    pool: Pool,
    decisions: Decisions,
    placed: Mapping[int, list[PlacedRegion]],
    options: PromoteOptions,
    processes: Processes,
) -> list[tuple[int, list[NewLabel]]]:
    """The new labels of this process's share of the pool's images, with the images' places.

    Whatever the settings say, scores are probabilities times objectness: the probability alone
    does not tell objects from the rest, and the known head's foreground knows no novel ones.
    """
    accepted = accepted_classes(predictor.classifier, decisions, unnamed=options.unnamed)
    classifier = replace(predictor.classifier, foreground=None, by_objectness=True)
    # Ids of several files may be the same.
    images = [replace(image, id=index) for index, image in enumerate(pool.images)]
    inference = Inference(predictor.detector, [classifier], predictor.settings)
    found = []
    for batch in predict_images(inference, images, processes=processes):
        for image, regions in zip(batch.images, batch.regions[0], strict=True):
            labels = choose_labels(
                regions,
                accepted,
                Surroundings(
                    is_labelled=image.id < pool.num_labelled,
                    annotated_xyxy=_annotated(pool, image.id),
                    placed=placed.get(image.id, ()),
                ),
                min_score=options.min_score,
                only_placed=options.only_placed,
            )
            if labels:
                found.append((image.id, labels))
    return found


def _annotated(pool: Pool, index: int) -> np.ndarray:
    """(n, 4) boxes of a pool image's annotations, crowds among them."""
    annotations = pool.labels.annotations
    if index >= pool.num_labelled:
        return np.zeros((0, 4))
    return annotations.boxes_xyxy[annotations.rows_of_image(index)]


def _say_counts(out: Path, kept: Mapping[int, list[NewLabel]], pool: Pool) -> None:
    counts = Counter(one.name for labels in kept.values() for one in labels)
    new_images = sum(index >= pool.num_labelled for index in kept)
    for name, count in counts.most_common():
        known = " (known)" if name in pool.labels.split.known else ""
        say(f"{count:7,}  {name}{known}")
    say(
        f"Labels: {out} ({counts.total():,} new ones beside {len(pool.labels.labels):,}; "
        f"{new_images:,} images more). Train with `rncdl train --labelled {out} ...`."
    )
