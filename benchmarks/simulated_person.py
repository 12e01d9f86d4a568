"""Somebody who knows the truth, for `clicks.py`: names clusters or labels boxes, click by click."""

import json
import os
import random
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torchvision.ops import box_iou

from rncdl.data.annotations import load_annotations
from rncdl.data.records import AnnotationSet
from rncdl.discovery.bank import Bank
from rncdl.files import write_atomically
from rncdl.inputs import load_pool
from rncdl.naming.deciding import ignore_clusters, name_clusters
from rncdl.run_folder import RunFolder
from rncdl.stages.name import open_served

NUM_LOOKED_AT = 20
"""Regions of a cluster that the person looks at."""
SAME_OBJECT_IOU = 0.5


def spend_clicks(run: Path, oracle: Path, num_clicks: int) -> None:
    """Name, merge or ignore as many clusters, the most promising first."""
    opened = RunFolder(run)
    discovery = opened.discovery("main")
    board, bank = open_served(opened, "main", 0).board, Bank(opened.bank_dir)
    truth = Truth(load_annotations(oracle).annotations)
    inputs = discovery.inputs()
    assert inputs is not None
    pool = load_pool(opened, inputs, settings=discovery.settings(), shown=False)
    facts = board.membership.facts
    order = sorted(range(len(facts)), key=lambda cluster: -facts[cluster].promise)
    for cluster in order[:num_clicks]:
        members = board.members(cluster, start=0, count=NUM_LOOKED_AT)["members"]
        seen = Counter(
            truth.class_of(
                pool.images[image].path, bank.read_boxes(image, count=region + 1)[region]
            )
            for image, region in (one["key"] for one in members)
        )
        name = seen.most_common(1)[0][0] if seen else None
        if name is None:
            ignore_clusters(board, [cluster], ignored=True, seen=board.version)
        else:
            name_clusters(board, [cluster], name, merge=True, seen=board.version)
        board.refresh()
    board.store.close()


class Truth:
    """What every region of every training image really shows."""

    def __init__(self, annotations: AnnotationSet) -> None:
        self._annotations = annotations.take(np.flatnonzero(~annotations.is_crowd.astype(bool)))
        paths = (os.path.realpath(image.path) for image in annotations.images)
        self._index = {path: index for index, path in enumerate(paths)}
        self._names = {category.id: category.name for category in annotations.categories}

    def class_of(self, path: Path, box_xyxy: torch.Tensor) -> str | None:
        """The class of the object that a box lies on; None: on none."""
        rows = self._annotations.rows_of_image(self._index[os.path.realpath(path)])
        boxes = torch.from_numpy(self._annotations.boxes_xyxy[rows]).float()
        if not len(boxes):
            return None
        ious = box_iou(box_xyxy[None].float(), boxes)[0]
        if ious.max() < SAME_OBJECT_IOU:
            return None
        return self._names[int(self._annotations.category_ids[rows][int(ious.argmax())])]


def label_boxes(data: Path, num_clicks: int, out: Path, *, seed: int) -> Path:
    """The labelled file, with as many novel objects of the unlabelled images, drawn at random."""
    labelled, unlabelled, oracle = (
        json.loads((data / f"{name}.json").read_text())
        for name in ("labelled", "unlabelled", "oracle")
    )
    known_ids = {category["id"] for category in labelled["categories"]}
    of_image: dict[int, list[dict[str, Any]]] = defaultdict(list)
    for one in oracle["annotations"]:
        of_image[one["image_id"]].append(one)
    ids = {image["id"] for image in unlabelled["images"]}
    novel = [
        one
        for one in oracle["annotations"]
        if one["image_id"] in ids and one["category_id"] not in known_ids and not one.get("iscrowd")
    ]
    drawn = random.Random(seed).sample(novel, min(num_clicks, len(novel)))
    images = {one["image_id"] for one in drawn}
    free = [one for i in images for one in of_image[i] if one["category_id"] in known_ids]
    added = [*drawn, *free]
    first = 1 + max(one["id"] for one in labelled["annotations"])
    content = {
        "images": [
            {**image, "file_name": str(data / image["file_name"])}
            for image in (
                *labelled["images"],
                *(image for image in unlabelled["images"] if image["id"] in images),
            )
        ],
        "annotations": [
            *labelled["annotations"],
            *({**one, "id": first + i} for i, one in enumerate(added)),
        ],
        "categories": oracle["categories"],
    }
    write_atomically(out, json.dumps(content).encode())
    return out
