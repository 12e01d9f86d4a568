"""Time and memory of a file as large as LVIS v1's training labels: 1.27 M annotations, 1.1 GB.

The file is made up: real field names, polygons of the mean length. Each way of reading it runs
in a process of its own; the limits are those the project sets itself.
"""

import json
import multiprocessing
import resource
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

NUM_IMAGES = 100_170
NUM_ANNOTATIONS = 1_270_141
NUM_CATEGORIES = 1203
CORNERS = 50
NUM_OUTLINES = 1000
"""different polygons, used again and again"""
MAX_SECONDS, MAX_GB = 15.0, 4.0


def write_file(path: Path) -> None:
    """A file with LVIS's fields and size."""
    rng = np.random.default_rng(0)
    outlines = [json.dumps([row.tolist()]) for row in _outlines(rng)]
    boxes = rng.uniform(1, 200, size=(NUM_ANNOTATIONS, 4)).round(2).tolist()
    image_ids = rng.integers(1, NUM_IMAGES + 1, size=NUM_ANNOTATIONS).tolist()
    category_ids = rng.integers(1, NUM_CATEGORIES + 1, size=NUM_ANNOTATIONS).tolist()
    images = [
        {
            "id": i,
            "height": 480,
            "width": 640,
            "coco_url": f"http://images.cocodataset.org/train2017/{i:012}.jpg",
            "neg_category_ids": [3, 70, 400, 801],
            "not_exhaustive_category_ids": [12],
        }
        for i in range(1, NUM_IMAGES + 1)
    ]
    categories = [
        {"id": c, "name": f"class_{c}", "synset": f"class.n.{c}", "frequency": "f"}
        for c in range(1, NUM_CATEGORIES + 1)
    ]
    with path.open("w") as file:
        file.write('{"images": ' + json.dumps(images) + ', "annotations": [')
        for row, (box, image_id, category_id) in enumerate(
            zip(boxes, image_ids, category_ids, strict=True)
        ):
            file.write(
                f'{", " if row else ""}{{"area": {box[2] * box[3]:.2f}, "id": {row + 1}, '
                f'"segmentation": {outlines[row % NUM_OUTLINES]}, "image_id": {image_id}, '
                f'"bbox": {box}, "category_id": {category_id}}}'
            )
        file.write('], "categories": ' + json.dumps(categories) + "}")


def _outlines(rng: np.random.Generator) -> np.ndarray:
    """(NUM_OUTLINES, 2 * CORNERS) numbers with two decimals."""
    return rng.uniform(0, 480, size=(NUM_OUTLINES, 2 * CORNERS)).round(2)


def load_and_index(path: Path) -> int:
    """Number of annotations of the loaded, judged and sorted dataset."""
    from rncdl.data.annotations import load_annotations

    return len(load_annotations(path).annotations.annotation_ids)


def list_images(path: Path) -> int:
    """Number of images, the annotations passed by: what a split needs."""
    from rncdl.data.public.formats import places_by_id, read_lvis_lists

    return len(places_by_id(read_lvis_lists(path).images, path))


def copy_with_places(path: Path) -> int:
    """Bytes of the copy whose images say where they are: a setting's `labelled.json`."""
    from rncdl.data.public.formats import (
        MadeFile,
        named_classes,
        places_by_id,
        read_lvis_whole,
    )

    whole = read_lvis_whole(path)
    images = list(places_by_id(whole.images, path).values())
    made = path.with_name("made.json")
    MadeFile(images, whole.annotations, named_classes(whole.categories)).write(made)
    return made.stat().st_size


def measure(work: Callable[[Path], int], path: Path) -> tuple[int, float, float, float]:
    """What `work` returns, seconds on the clock, CPU seconds, the process's peak memory in GB."""
    start, start_cpu = time.perf_counter(), time.process_time()
    count = work(path)
    seconds, cpu_seconds = time.perf_counter() - start, time.process_time() - start_cpu
    peak_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return count, seconds, cpu_seconds, peak_kb * 1024 / 1e9


def main() -> None:
    """Make the file, read it in three ways, print each beside the limits."""
    spawn = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "lvis_v1_train.json"
        write_file(path)
        print(f"{path.stat().st_size / 1e9:.2f} GB, {NUM_ANNOTATIONS:,} annotations")
        print(f"{'':18}{'count':>14}{'seconds':>10}{'CPU s':>8}{'of limit':>10}{'peak GB':>9}"
              f"{'of limit':>10}")  # fmt: skip
        for work in (load_and_index, list_images, copy_with_places):
            with spawn.Pool(1) as pool:
                count, seconds, cpu_seconds, peak_gb = pool.apply(measure, (work, path))
            print(
                f"{work.__name__:18}{count:14,}{seconds:10.2f}{cpu_seconds:8.2f}"
                f"{seconds / MAX_SECONDS:10.2f}{peak_gb:9.2f}{peak_gb / MAX_GB:10.2f}"
            )


if __name__ == "__main__":
    main()
