"""Known or new? Which score tells an object of a known class from one of a class nobody labelled.

`python benchmarks/known_or_new.py FOLDER --world WORLD [--preset shapes] [--leave-out 2]
[--full RUN [--discovery NAME]] [--processes 2] [SETTING=VALUE ...]`

A score can be chosen without a novel label: some known classes are taken out of the labels of
WORLD/labelled.json, so that their objects stay in the images unlabelled, and a detector is trained
on the first four fifths of the images. In the last fifth every score has to tell the annotated
boxes of the kept classes from those of the left-out ones. Whether the choice carries over is judged
with the full detector on the known and the truly novel boxes of WORLD/val.json: RUN, or one that is
trained here with the same settings. With a discovery of RUN, its own rule is judged too.

Prints, for every score, the area under the curve and the share of new boxes still called known at
the threshold that loses 5 % of the known ones, and writes it to FOLDER/known_or_new.md. Detectors
and what they saw are kept in FOLDER; a second call goes on where the first stopped.
"""

import argparse
import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from known_scores import (
    COMPARED,
    KnownClasses,
    Measured,
    agreement_scores,
    logit_scores,
    measure,
    share_called_known,
)
from scipy.stats import spearmanr
from torch import Tensor

from rncdl.classes import ClassSplit
from rncdl.config import Settings, resolve_settings
from rncdl.data.records import AnnotationSet
from rncdl.data.samples import Sample, to_sample_pixels
from rncdl.data.transforms import mirror_sample
from rncdl.detector.model import Detector
from rncdl.evaluation.ap_tables import markdown_table
from rncdl.files import write_atomically
from rncdl.inputs import load_dataset
from rncdl.models import load_detector, load_heads
from rncdl.origins import digest
from rncdl.prediction.classifier import discovery_classifier
from rncdl.prediction.inference import load_batches
from rncdl.run_folder import RunFolder
from rncdl.training.processes import alone, autocast, choose_precision

TRAINED_SHARE = 0.8
"""Of the labelled images, where classes are left out; the others judge."""


@dataclass(frozen=True)
class Seen:
    """What a detector makes of A annotated boxes, in the image and in its mirror image."""

    features: Tensor
    """(2, A, F)"""
    logits: Tensor
    """(2, A, K + 1), background last"""
    classes: Tensor
    """(A,) known class of the detector, -1: new to it"""
    image_index: Tensor
    """(A,)"""

    def take(self, chosen: Tensor) -> "Seen":
        """The boxes that are chosen (A,) bool."""
        return Seen(
            self.features[:, chosen],
            self.logits[:, chosen],
            self.classes[chosen],
            self.image_index[chosen],
        )


def scores_of(judged: Seen, taught: Seen) -> dict[str, Tensor]:
    """(A,) each, higher for known; `taught`: the annotated boxes the detector learned from."""
    known = KnownClasses.of(taught.features.flatten(0, 1), taught.classes.repeat(2))
    return {
        **logit_scores(judged.logits[0]),
        **known.scores(judged.features[0]),
        **agreement_scores(judged.logits, judged.features),
    }


def measure_all(scores: Mapping[str, Tensor], is_known: Tensor) -> dict[str, Measured]:
    """How well each score tells known boxes from new ones; `is_known` (A,) bool."""
    return {
        name: measure(values[is_known].numpy(), values[~is_known].numpy())
        for name, values in scores.items()
    }


def classes_to_leave_out(counts: Mapping[str, int], number: int) -> list[str]:
    """Of the classes by their number of annotations, some at equal steps from most to fewest."""
    ordered = sorted(counts, key=lambda name: (-counts[name], name))
    return [ordered[(step + 1) * len(ordered) // (number + 1)] for step in range(number)]


def leave_out(labels: Mapping[str, Any], names: Sequence[str], num_images: int) -> dict[str, Any]:
    """The first images of a COCO file, as if nobody had labelled the named classes."""
    categories = [one for one in labels["categories"] if one["name"] not in names]
    category_ids = {one["id"] for one in categories}
    images = labels["images"][:num_images]
    image_ids = {one["id"] for one in images}
    annotations = [
        one
        for one in labels["annotations"]
        if one["category_id"] in category_ids and one["image_id"] in image_ids
    ]
    return {**labels, "images": images, "categories": categories, "annotations": annotations}


@dataclass(frozen=True)
class Laboratory:
    """Where things are kept, and how they are made."""

    folder: Path
    world: Path
    settings: Settings
    processes: int

    def train(self, name: str, labelled: Path) -> RunFolder:
        """A run whose detector is trained to the end, from these labels with these settings."""
        settings = json.dumps(self.settings.model_dump(mode="json")).encode()
        run = RunFolder(self.folder / f"{name}_{digest(settings, labelled.read_bytes())}")
        if not run.detector_file.is_file():
            preset = self.folder / "settings.yaml"
            write_atomically(preset, settings)
            first = ["--labelled", labelled, "--images", self.world, "--preset", preset]
            words = ["--run", run.path, *(["--resume"] if run.exists else first)]
            command = ["--processes", self.processes, "train", *words]
            subprocess.run([sys.executable, "-m", "rncdl", *map(str, command)], check=True)
        return run

    def look(self, run: RunFolder, labels: Path) -> Seen:
        """What the run's detector makes of the annotated boxes of a file."""
        key = digest(run.detector_file.read_bytes(), labels.read_bytes())
        path = self.folder / "seen" / f"{key}.safetensors"
        if not path.is_file():
            settings, split = run.settings(), run.split()
            detector = load_detector(run, settings, split)
            seen = look(detector, load_dataset(labels, None, shown=False), split, settings)
            write_atomically(path, safetensors.torch.save(vars(seen)))
        return Seen(**safetensors.torch.load_file(path))


@torch.inference_mode()
def look(
    detector: Detector, annotations: AnnotationSet, split: ClassSplit, settings: Settings
) -> Seen:
    """What a detector makes of all annotated boxes."""
    processes = alone(settings.device)
    detector.to(processes.device).eval()
    rows, features = [], []
    for batch in load_batches(
        annotations.images, settings=settings, processes=processes, title="look"
    ):
        samples = []
        for sample in batch.samples:
            own = annotations.rows_of_image(sample.image_index)
            boxes = torch.from_numpy(annotations.boxes_xyxy[own]).float()
            samples.append(replace(sample, boxes_xyxy=to_sample_pixels(boxes, sample)))
            rows.append(torch.arange(own.start, own.stop))
        if samples:
            mirrored = [mirror_sample(sample) for sample in samples]
            views = [_features(detector, view, settings) for view in (samples, mirrored)]
            features.append(torch.stack(views))
    class_of = split.known_ids(annotations)
    classes = torch.tensor([class_of.get(i, -1) for i in annotations.category_ids.tolist()])
    found, seen_rows = torch.cat(features, 1), torch.cat(rows)
    seen = Seen(
        found.cpu(),
        detector.known_head(found).cpu(),
        classes[seen_rows],
        torch.from_numpy(annotations.image_index)[seen_rows],
    )
    return seen.take(~torch.from_numpy(annotations.is_crowd)[seen_rows])


def _features(detector: Detector, samples: Sequence[Sample], settings: Settings) -> Tensor:
    device = detector.device
    with autocast(device, choose_precision(settings.train.precision, device)):
        batch = detector.batch_images([sample.image for sample in samples])
        boxes = [sample.boxes_xyxy.to(device) for sample in samples]
        return detector.region_features(detector.feature_maps(batch), boxes).float()


def discovery_scores(run: RunFolder, name: str, features: Tensor) -> Tensor:
    """(A,) of a discovery: best known output minus best cluster; above 0 it says "known"."""
    split, settings = run.split(), run.discovery(name).settings()
    detector = load_detector(run, run.settings(), split).eval()
    heads = load_heads(run, detector, name)
    classifier = discovery_classifier(detector, heads, split.known, predict=settings.predict)
    with torch.inference_mode():
        found = classifier.probabilities_of(features)
    return found[:, : split.num_known].amax(1) - found[:, split.num_known :].amax(1)


def rule_line(name: str, says_known: Tensor, compared: Tensor, is_known: Tensor) -> str:
    """What a rule does to known and to new boxes, and a score that loses as many known ones."""
    lost = (~says_known[is_known]).float().mean().item()
    called = says_known[~is_known].float().mean().item()
    known, new = compared[is_known].numpy(), compared[~is_known].numpy()
    alike = share_called_known(known, new, lost_share=lost)
    return (
        f"{name}: {lost:.3f} of the known boxes lost, {called:.3f} of the new ones called known; "
        f"by {COMPARED}, as many lost, {alike:.3f}"
    )


def report(left_out: Mapping[str, Measured], novel: Mapping[str, Measured]) -> str:
    """The table of all scores, and how far the two agree about their order."""
    rows = []
    for name in novel:
        pair = (left_out.get(name), novel[name])
        cells = [("-", "-") if one is None else _cells(one) for one in pair]
        rows.append([name, *cells[0], *cells[1]])
    shared = [name for name in novel if name in left_out]
    agreement = spearmanr(
        [left_out[name].auc for name in shared], [novel[name].auc for name in shared]
    ).statistic
    header = ["score", "left out: AUC", "called known", "novel: AUC", "called known"]
    return f"{markdown_table(header, rows)}\nRank correlation of the AUCs: {agreement:.2f}\n"


def _cells(measured: Measured) -> tuple[str, str]:
    return f"{measured.auc:.3f}", f"{measured.called_known:.3f}"


def measure_left_out(laboratory: Laboratory, number: int) -> tuple[list[str], dict[str, Measured]]:
    """What tells left-out classes from kept ones; lines of text, and every score."""
    labelled = laboratory.world / "labelled.json"
    labels = json.loads(labelled.read_text())
    names = {one["id"]: one["name"] for one in labels["categories"]}
    counts = Counter(names[one["category_id"]] for one in labels["annotations"])
    left_out = classes_to_leave_out(counts, number)
    num_trained = round(TRAINED_SHARE * len(labels["images"]))
    kept = laboratory.folder / f"without_{number}.json"
    write_atomically(kept, json.dumps(leave_out(labels, left_out, num_trained)).encode())
    run = laboratory.train("left_out", kept)
    seen = laboratory.look(run, labelled)
    is_trained, is_known = seen.image_index < num_trained, seen.classes >= 0
    judged = seen.take(~is_trained)
    scores = scores_of(judged, seen.take(is_trained & is_known))
    lines = [f"Left out: {', '.join(left_out)}", *describe(judged, scores)]
    return lines, measure_all(scores, judged.classes >= 0)


def describe(judged: Seen, scores: Mapping[str, Tensor]) -> list[str]:
    """How many boxes there are, and what the detector by itself takes them for."""
    is_known = judged.classes >= 0
    is_class = judged.logits[0].argmax(1) < judged.logits.shape[2] - 1
    return [
        f"{is_known.sum()} known and {(~is_known).sum()} new boxes",
        rule_line("Best output of the trained classifier", is_class, scores[COMPARED], is_known),
    ]


def measure_novel(
    laboratory: Laboratory, run: RunFolder, discovery: str | None
) -> tuple[list[str], dict[str, Measured]]:
    """What tells the novel boxes of the validation file from the known ones. For judging alone."""
    taught = laboratory.look(run, laboratory.world / "labelled.json")
    judged = laboratory.look(run, laboratory.world / "val.json")
    scores, is_known = scores_of(judged, taught.take(taught.classes >= 0)), judged.classes >= 0
    lines = [f"Full detector: {run.path}", *describe(judged, scores)]
    if discovery is not None:
        found = discovery_scores(run, discovery, judged.features[0])
        lines.append(
            rule_line("Best output after discovery", found > 0, scores[COMPARED], is_known)
        )
        scores["discovery: best known - best cluster"] = found
    return lines, measure_all(scores, is_known)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--world", type=Path, required=True)
    parser.add_argument("--preset", default="shapes")
    parser.add_argument("--leave-out", type=int, default=2, help="known classes")
    parser.add_argument("--full", type=Path, help="run; default: one is trained in FOLDER")
    parser.add_argument("--discovery", help="of that run")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("overrides", nargs="*", metavar="SETTING=VALUE")
    options = parser.parse_intermixed_args()
    settings = resolve_settings(options.preset, options.overrides)
    folder = options.folder.resolve()
    laboratory = Laboratory(folder, options.world.resolve(), settings, options.processes)
    left_out_lines, left_out = measure_left_out(laboratory, options.leave_out)
    if options.full is None:
        full = laboratory.train("full", laboratory.world / "labelled.json")
    else:
        full = RunFolder(options.full)
    novel_lines, novel = measure_novel(laboratory, full, options.discovery)
    text = "\n".join([*left_out_lines, "", *novel_lines, "", report(left_out, novel)])
    write_atomically(folder / "known_or_new.md", text.encode())
    print(text)


if __name__ == "__main__":
    main()
