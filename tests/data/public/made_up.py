"""Small files of exactly the public formats, for COCO 2017, LVIS v1 and Visual Genome v1.4.

Every field that the published files have is here once, used or not. `python -m
tests.data.public.made_up FOLDER` writes them for a look.

Image ids are COCO's in all of COCO and LVIS; Visual Genome has its own and names COCO's in
`coco_id`. Category ids are each file's own.
"""

import json
import sys
from pathlib import Path
from typing import Any

from PIL import Image

Record = dict[str, Any]

LVIS_TRAIN = {9: "train2017", 25: "train2017", 30: "train2017", 34: "train2017", 139: "val2017"}
LVIS_VAL = {285: "val2017", 632: "val2017", 36: "train2017", 42: "train2017"}
COCO_ONLY = {49: "train2017", 724: "val2017"}
"""COCO image id -> its folder. Few of LVIS's images are not in COCO's own split of the same name;
a few of COCO's are not in LVIS."""
WIDTH, HEIGHT = 64, 48

COCO_CLASSES = {1: "person", 3: "car", 38: "kite", 58: "hot dog"}
LVIS_CLASSES = {
    # id: name, synset, frequency. `hot dog` (frank.n.02) is not among them.
    2: ("acorn", "acorn.n.01", "r"),
    207: ("car_(automobile)", "car.n.01", "f"),
    611: ("kite", "kite.n.03", "f"),
    793: ("person", "person.n.01", "f"),
}


def coco_url(image_id: int, folder: str) -> str:
    return f"http://images.cocodataset.org/{folder}/{image_id:012}.jpg"


def coco_file(images: dict[int, str]) -> Record:
    """`instances_train2017.json`, `instances_val2017.json`."""
    return {
        "info": {"description": "COCO 2017 Dataset", "year": 2017, "version": "1.0"},
        "licenses": [{"id": 1, "name": "Attribution", "url": "http://creativecommons.org"}],
        "images": [
            {
                "license": 1,
                "file_name": f"{image_id:012}.jpg",  # without a folder
                "coco_url": coco_url(image_id, folder),
                "height": HEIGHT,
                "width": WIDTH,
                "date_captured": "2013-11-14 11:18:45",
                "flickr_url": "http://farm9.staticflickr.com/1.jpg",
                "id": image_id,
            }
            for image_id, folder in images.items()
        ],
        "annotations": [
            {
                # Polygons, or uncompressed RLE where iscrowd is 1.
                "segmentation": [[4.0, 4.0, 24.0, 4.0, 24.0, 14.0]],
                "area": 100.0,
                "iscrowd": 0,
                "image_id": image_id,
                "bbox": [4.0, 4.0, 20.0, 10.0],  # x, y, width, height
                "category_id": category_id,
                "id": 1000 * image_id + category_id,
            }
            for image_id in images
            for category_id in COCO_CLASSES
        ],
        # Names only, no synsets; ids from 1 to 90 with gaps.
        "categories": [
            {"supercategory": "thing", "id": category_id, "name": name}
            for category_id, name in COCO_CLASSES.items()
        ],
    }


def lvis_file(images: dict[int, str]) -> Record:
    """`lvis_v1_train.json`, `lvis_v1_val.json`."""
    return {
        "info": {"description": "LVIS v1", "year": 2020, "version": "1"},
        "licenses": [{"id": 1, "name": "Attribution", "url": "http://creativecommons.org"}],
        "images": [
            {
                "date_captured": "2013-11-14 11:18:45",
                # Classes checked to be absent; classes of which some instances are unlabelled.
                "neg_category_ids": [2],
                "not_exhaustive_category_ids": [611],
                "id": image_id,
                "license": 1,
                "height": HEIGHT,
                "width": WIDTH,
                "flickr_url": "http://farm9.staticflickr.com/1.jpg",
                "coco_url": coco_url(image_id, folder),  # no file_name in v1
            }
            for image_id, folder in images.items()
        ],
        "annotations": [
            {
                # No iscrowd in LVIS.
                "area": 100.5,
                "id": 5000 * image_id + category_id,
                "segmentation": [[4.0, 4.0, 24.0, 4.0, 24.0, 14.0]],
                "image_id": image_id,
                "bbox": [4.0, 4.0, 20.0, 10.0],
                "category_id": category_id,
            }
            for image_id in images
            for category_id in LVIS_CLASSES
        ],
        "categories": [
            {
                "image_count": 6,
                "synonyms": [name],
                "def": "what it is",
                "id": category_id,
                "synset": synset,
                "name": name,
                "frequency": frequency,
                "instance_count": 12,
            }
            for category_id, (name, synset, frequency) in LVIS_CLASSES.items()
        ],
    }


GENOME_IMAGES = {
    # Visual Genome's image id: (folder, COCO's image id where the picture is COCO's)
    1: ("VG_100K_2", None),
    2: ("VG_100K", None),
    3: ("VG_100K", 9),  # also in LVIS train
    4: ("VG_100K_2", 49),  # in COCO, not in LVIS
    5: ("VG_100K", 285),  # LVIS val
    6: ("VG_100K_2", 36),  # LVIS val
}
GENOME_WIDTH, GENOME_HEIGHT = 80, 60  # the same picture may have another size than in COCO


def genome_images() -> list[Record]:
    """`image_data.json`."""
    return [
        {
            "width": GENOME_WIDTH,
            "url": f"https://cs.stanford.edu/people/rak248/{folder}/{image_id}.jpg",
            "height": GENOME_HEIGHT,
            "image_id": image_id,
            "coco_id": coco_id,
            "flickr_id": None,
        }
        for image_id, (folder, coco_id) in GENOME_IMAGES.items()
    ]


def genome_object(object_id: int, synsets: list[str], box_xywh: list[float]) -> Record:
    x, y, w, h = box_xywh
    return {
        "synsets": synsets,  # WordNet; usually one, sometimes none or several
        "h": h,
        "object_id": object_id,
        "merged_object_ids": [],
        "names": ["what the annotator wrote"],
        "w": w,
        "y": y,
        "x": x,
    }


def genome_objects() -> list[Record]:
    """`objects.json`: a person and a building in every image, and what can be wrong with others."""
    entries: list[Record] = [
        {
            "image_id": image_id,
            "objects": [
                genome_object(10 * image_id, ["person.n.01"], [5, 5, 20, 30]),
                genome_object(10 * image_id + 1, ["building.n.01"], [0, 0, 80, 60]),
            ],
            "image_url": f"https://cs.stanford.edu/people/rak248/VG_100K/{image_id}.jpg",
        }
        for image_id in GENOME_IMAGES
    ]
    by_id = {entry["image_id"]: entry["objects"] for entry in entries}
    by_id[1].append(genome_object(801, ["sky.n.01"], [0, 0, 80, 20]))  # training only
    by_id[5].append(genome_object(802, ["unicorn.n.01"], [0, 0, 9, 9]))  # validation only
    by_id[5].append(genome_object(803, ["person.n.01", "man.n.01"], [60, 40, 40, 40]))  # clipped
    by_id[5].append(genome_object(804, ["person.n.01"], [90, 5, 10, 10]))  # outside
    by_id[5].append(genome_object(805, ["person.n.01"], [5, 5, 0, 10]))  # without area
    by_id[6].append(genome_object(806, [], [5, 5, 10, 10]))
    entries.append(
        {"image_id": 999, "objects": [genome_object(807, ["person.n.01"], [1, 1, 5, 5])]}
    )
    return entries


def in_folder(*images: dict[int, str], folder: str) -> dict[int, str]:
    return {i: place for group in images for i, place in group.items() if place == folder}


def public_files() -> dict[str, Any]:
    """Path below the datasets' folder -> content."""
    train = in_folder(LVIS_TRAIN, LVIS_VAL, COCO_ONLY, folder="train2017")
    val = in_folder(LVIS_TRAIN, LVIS_VAL, COCO_ONLY, folder="val2017")
    return {
        "coco/annotations/instances_train2017.json": coco_file(train),
        "coco/annotations/instances_val2017.json": coco_file(val),
        "lvis/lvis_v1_train.json": lvis_file(LVIS_TRAIN),
        "lvis/lvis_v1_val.json": lvis_file(LVIS_VAL),
        "vg/image_data.json": genome_images(),
        "vg/objects.json": genome_objects(),
        # The authors' files are COCO files of some of the images; 139 lies in val2017.
        "authors/coco_half_train.json": coco_file({9: "train2017", 34: "train2017"}),
        "authors/coco_half_val.json": coco_file({285: "val2017"}),
    }


def write_public_files(root: Path) -> None:
    """All files and the images below `root`: coco, lvis, vg, authors."""
    for name, content in public_files().items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(json.dumps(content))
    for group in (LVIS_TRAIN, LVIS_VAL, COCO_ONLY):
        for image_id, folder in group.items():
            _draw(root / "coco" / folder / f"{image_id:012}.jpg", (WIDTH, HEIGHT))
    for image_id, (folder, _) in GENOME_IMAGES.items():
        _draw(root / "vg" / folder / f"{image_id}.jpg", (GENOME_WIDTH, GENOME_HEIGHT))


def _draw(path: Path, size: tuple[int, int]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, (90, 120, 60)).save(path)
    with path.open("ab") as file:  # what follows an image's end is not read: no two files alike
        file.write(str(path).encode())


if __name__ == "__main__":
    write_public_files(Path(sys.argv[1]))
