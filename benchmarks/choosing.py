"""Which start of the teacher's clustering is the best? Choosing without labels, judged with them.

`python benchmarks/choosing.py RUN ORACLE [--discovery NAME] [--clusters 20] [--starts 20]`

RUN has a finished discovery with a teacher; ORACLE holds the labels of all its images, for judging
alone. Objects are grouped from many starts as `rncdl discover` does it, half of the labelled
objects being treated as unlabelled. Each criterion that needs no novel label ranks the starts;
printed are its rank correlations (Spearman) with the novel objects' accuracy and NMI, and what the
start that it would choose has.
"""

import argparse
from pathlib import Path

import numpy as np
import torch
from scipy.stats import spearmanr
from torch import Tensor
from torchvision.ops import box_iou

from rncdl.data.annotations import load_annotations
from rncdl.data.viewed_images import Pool
from rncdl.discovery.bank import Bank
from rncdl.discovery.joining import agreements
from rncdl.discovery.lessons import SeenObjects, group_objects, open_objects, read_objects
from rncdl.discovery.semi_supervised import PartlyLabelled
from rncdl.evaluation.ap_tables import markdown_table
from rncdl.evaluation.clustering_scores import score_clustering
from rncdl.inputs import load_pool
from rncdl.run_folder import RunFolder

SAME_OBJECT_IOU = 0.5
NO_CLASS = -1


def true_classes(objects: SeenObjects, pool: Pool, oracle: Path) -> np.ndarray:
    """(O,) category of the annotation that each object lies on; `NO_CLASS`: on none."""
    truth = load_annotations(oracle).annotations
    place = {image.path: index for index, image in enumerate(truth.images)}
    found = np.full(len(objects.image_index), NO_CLASS)
    for index in np.unique(objects.image_index):
        own = objects.image_index == index
        rows = truth.rows_of_image(place[pool.images[index].path])
        boxes = torch.from_numpy(truth.boxes_xyxy[rows]).float()
        if len(boxes):
            overlap, nearest = box_iou(objects.boxes_xyxy[own].float(), boxes).max(1)
            classes = truth.category_ids[rows][nearest.numpy()]
            found[own] = np.where(overlap.numpy() >= SAME_OBJECT_IOU, classes, NO_CLASS)
    return found


def compactness(features: Tensor, labels: np.ndarray) -> tuple[float, float]:
    """Minus the mean squared distance from the own centroid, and the simplified silhouette."""
    used, places = np.unique(labels, return_inverse=True)
    own = torch.from_numpy(places)
    centroids = torch.stack([features[own == one].mean(0) for one in range(len(used))])
    distances = torch.cdist(features, centroids)
    to_own = distances.gather(1, own[:, None])[:, 0]
    to_next = distances.scatter(1, own[:, None], torch.inf).amin(1)
    silhouette = (to_next - to_own) / torch.maximum(to_own, to_next)
    return -float(to_own.square().mean()), float(silhouette.mean())


def measure(run: RunFolder, discovery: str, oracle: Path, *, clusters: int, starts: int) -> str:
    """The table of criteria."""
    folder = run.discovery(discovery)
    settings, inputs = folder.settings(), folder.inputs()
    assert inputs is not None
    pool = load_pool(run, inputs, settings=settings, shown=False)
    objects = read_objects(Bank(run.object_bank_dir))
    is_open = open_objects(objects, pool, settings)
    classes = true_classes(objects, pool, oracle)[is_open]
    known_ids = run.split().known_ids(load_annotations(oracle).annotations)
    is_novel = (classes != NO_CLASS) & ~np.isin(classes, list(known_ids))
    held_out = torch.rand(len(objects.labels), generator=torch.Generator().manual_seed(0)) < 0.5
    features = torch.cat([objects.features[torch.from_numpy(is_open)], objects.labelled[held_out]])
    num_open, num_known = int(is_open.sum()), run.split().num_known
    given = PartlyLabelled(
        features, objects.labelled[~held_out], objects.labels[~held_out], num_known
    )
    found = group_objects(
        given,
        num_clusters=clusters,
        per_known=settings.teacher.known_prototypes,
        seed=settings.seed,
        starts=starts,
    )
    scores = [score_clustering(one[:num_open][is_novel], classes[is_novel]) for one in found]
    accuracies = [one.accuracy for one in scores if one is not None]
    purities = [one.nmi for one in scores if one is not None]
    compact = np.array([compactness(features, one) for one in found])
    kept = objects.labels[held_out].numpy()
    criteria: dict[str, np.ndarray] = {
        "agreement with the other starts": agreements(found),
        "inertia": compact[:, 0],
        "silhouette": compact[:, 1],
        "held-out known objects in their class": np.array(
            [(one[num_open:] == kept).mean() for one in found]
        ),
    }
    rows = [
        ["mean of all starts", "", "", f"{np.mean(accuracies):.3f}", f"{np.mean(purities):.3f}"]
    ]
    for name, values in criteria.items():
        best = int(np.argmax(values))
        ranks = [spearmanr(values, truth).statistic for truth in (accuracies, purities)]
        chosen = (accuracies[best], purities[best])
        rows.append([name, *(f"{rank:+.2f}" for rank in ranks), *(f"{one:.3f}" for one in chosen)])
    header = ["criterion", "rank corr., acc.", "NMI", "acc. of the chosen", "its NMI"]
    return markdown_table(header, rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path)
    parser.add_argument("oracle", type=Path)
    parser.add_argument("--discovery", help="the newest finished one unless said")
    parser.add_argument("--clusters", type=int, default=20)
    parser.add_argument("--starts", type=int, default=20)
    options = parser.parse_args()
    run = RunFolder(options.run)
    discovery = run.choose_discovery(options.discovery)
    assert discovery is not None, f"{run.path} has no finished discovery"
    print(measure(run, discovery, options.oracle, clusters=options.clusters, starts=options.starts))


if __name__ == "__main__":
    main()
