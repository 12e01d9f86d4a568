"""Run by torchrun in each of two processes: train, then compare with the other process.

usage: two_ranks.py LABELLED RUN SETTING...
"""

import sys
from pathlib import Path

import torch

from rncdl.classes import ClassSplit
from rncdl.config import resolve_settings
from rncdl.data.annotations import load_annotations
from rncdl.data.batches import TrainingBatches
from rncdl.detector import object_search
from rncdl.detector.model import Detector
from rncdl.detector.training import train_detector
from rncdl.run_folder import RunFolder
from rncdl.training.processes import Processes, join_processes
from tests.ellipses import Ellipses


def first_batch(images, batch_size: int, processes: Processes | None) -> set[int]:
    batches = TrainingBatches(images, batch_size=batch_size, seed=0, processes=processes)
    return {index for index, _ in next(iter(batches))}


def check(processes: Processes, labelled: Path, run: RunFolder, overrides: list[str]) -> None:
    settings = resolve_settings(overrides=overrides)
    annotations = load_annotations(labelled).annotations
    labels = ClassSplit.from_labelled(annotations).keep_known(annotations)
    torch.manual_seed(processes.rank)  # ranks that start apart must still end together
    detector = Detector(settings.detector, labels.split.num_known, masks=True)
    train_detector(detector, labels, settings=settings, run=run, processes=processes)

    weights = torch.cat([p.detach().flatten() for p in detector.parameters()])
    assert bool(len(run.train_objects.read())) == bool(settings.train.objects_at)
    mine, other = processes.gather(weights)
    assert torch.equal(mine, other), "the ranks ended with different weights"

    size = settings.train.batch_size
    images = annotations.images
    shares = processes.gather(first_batch(images, size, processes))
    assert shares[0].isdisjoint(shares[1])
    assert shares[0] | shares[1] == first_batch(images, size, None)
    assert len(shares[0]) == len(shares[1]) == size // 2


if __name__ == "__main__":
    object_search.open_segmenter = lambda settings, device: Ellipses()
    object_search.IMAGES_PER_PART = 5
    with join_processes("cpu") as joined:
        assert joined.count == 2
        check(joined, Path(sys.argv[1]), RunFolder(Path(sys.argv[2])), sys.argv[3:])
    sys.stdout.write("same\n")
