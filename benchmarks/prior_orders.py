"""Which order of the prior's shares discovers best: `mass`, `random` or `fixed`.

`python benchmarks/prior_orders.py --run RUN --val VAL.json [--seeds 0,1,2] [SETTING=VALUE ...]`
Needs a trained run with a finished bank. Every discovery reads the same bank; the features of the
annotated validation boxes are computed once. Prints the clustering accuracy of the novel and of
all annotated boxes, with k-means on the same features beside it.
"""

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import fmean, pstdev

import numpy as np
import torch
from torch import Tensor, nn

from rncdl.config import Settings, change, resolve_settings
from rncdl.data.records import AnnotationSet, ImageRecord
from rncdl.discovery.bank import Bank
from rncdl.discovery.feeding import BankFeed, BatchSize
from rncdl.discovery.training import train_heads
from rncdl.evaluation.clustering_scores import score_clustering
from rncdl.experiments.baselines.centroids import fit_centroids
from rncdl.inputs import load_dataset
from rncdl.models import build_heads, load_detector
from rncdl.prediction.annotated import look_at_annotations
from rncdl.prediction.classifier import Classifier
from rncdl.run_folder import RunFolder
from rncdl.training.processes import Processes

ALONE = Processes(rank=0, count=1, device=torch.device("cpu"))


class Collector(nn.Module):
    """Keeps the features it is shown."""

    def __init__(self) -> None:
        super().__init__()
        self.features: list[Tensor] = []

    def forward(self, features: Tensor) -> Tensor:
        self.features.append(features.clone())
        return torch.zeros(len(features), 1)


def accuracies(
    classify: Callable[[Tensor], Tensor], features: Tensor, truth: AnnotationSet, novel: np.ndarray
) -> tuple[float, float]:
    """Accuracy over the novel and over all annotated boxes."""
    outputs = classify(features).argmax(1).numpy()
    of_novel = score_clustering(outputs[novel], truth.category_ids[novel])
    of_all = score_clustering(outputs, truth.category_ids)
    return (of_novel.accuracy if of_novel else 0.0), (of_all.accuracy if of_all else 0.0)


def discover(run: RunFolder, settings: Settings) -> Callable[[Tensor], Tensor]:
    bank = Bank(run.bank_dir)
    images = [ImageRecord(i, Path(), 1, 1) for i in range(bank.shape.num_images)]
    feed = BankFeed(
        bank,
        images,
        size=BatchSize(settings.discover.batch_images, settings.discover.labelled_images),
        partner_iou=settings.discover.partner_iou,
        seed=settings.seed,
    )
    torch.manual_seed(settings.seed)
    heads = build_heads(load_detector(run, settings, run.split()), settings.discover)
    with tempfile.TemporaryDirectory() as folder:
        train_heads(
            heads,
            feed,
            settings=settings,
            folder=Path(folder),
            processes=ALONE,
        )
    return torch.inference_mode()(heads.eval().probabilities)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--run", type=Path, required=True)
    parser.add_argument("--val", type=Path, required=True)
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--orders", default="mass,random,fixed")
    parser.add_argument("overrides", nargs="*")
    options = parser.parse_args()
    run = RunFolder(options.run)
    settings = resolve_settings(base=run.settings(), overrides=options.overrides)
    truth = load_dataset(options.val, None, shown=False)
    novel = ~np.isin(truth.category_ids, list(run.split().known_ids(truth)))
    detector = load_detector(run, settings, run.split())
    collector = Collector()
    classifier = Classifier(collector, names=(), num_known=1)
    look_at_annotations(detector, truth, [classifier], settings=settings, processes=ALONE)
    features = torch.cat(collector.features)
    seeds = [int(seed) for seed in options.seeds.split(",")]
    rows: dict[str, list[tuple[float, float]]] = {}
    for seed in seeds:
        centroids = fit_centroids(
            Bank(run.bank_dir),
            num_known=run.split().num_known,
            num_clusters=settings.discover.heads[0],
            seed=seed,
        )
        rows.setdefault("k-means", []).append(accuracies(centroids, features, truth, novel))
    for order in options.orders.split(","):
        for seed in seeds:
            changed = change(settings, seed=seed, discover={"order": order})
            began = time.perf_counter()
            found = accuracies(discover(run, changed), features, truth, novel)
            rows.setdefault(order, []).append(found)
            spent = time.perf_counter() - began
            print(f"{order} seed {seed}: novel {found[0]:.3f}, all {found[1]:.3f}, {spent:.0f} s")
    print("\n| system | novel accuracy | all accuracy |\n|---|---:|---:|")
    for name, values in rows.items():
        cells = [f"{fmean(v):.3f} ± {pstdev(v):.3f}" for v in zip(*values, strict=True)]
        print(f"| {name} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
