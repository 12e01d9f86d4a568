"""Time and memory of loading a large COCO file: ours beside `json.load`.

Each loads the same made-up file (800,000 annotations, about 300 MB) in a process of its own.
"""

import json
import multiprocessing
import resource
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

NUM_IMAGES = 118_000
NUM_ANNOTATIONS = 800_000
NUM_CATEGORIES = 80
CORNERS = 14


def write_file(path: Path) -> None:
    """A COCO file of the size of COCO's own training labels, polygons included."""
    rng = np.random.default_rng(0)
    centres = rng.uniform(100, 380, size=(NUM_ANNOTATIONS, 2))
    radii = rng.uniform(5, 90, size=NUM_ANNOTATIONS)
    angles = np.linspace(0, 2 * np.pi, CORNERS, endpoint=False)
    circle = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    image_ids = rng.integers(NUM_IMAGES, size=NUM_ANNOTATIONS)
    category_ids = rng.integers(NUM_CATEGORIES, size=NUM_ANNOTATIONS)
    images = [
        {"id": i, "file_name": f"{i:012}.jpg", "height": 480, "width": 640}
        for i in range(NUM_IMAGES)
    ]
    with path.open("w") as file:
        file.write('{"images": ' + json.dumps(images) + ', "annotations": [')
        for row in range(NUM_ANNOTATIONS):
            corners = (centres[row] + radii[row] * circle).round(2).ravel().tolist()
            left_top = (centres[row] - radii[row]).round(2).tolist()
            entry = {
                "id": row,
                "image_id": int(image_ids[row]),
                "category_id": int(category_ids[row]) + 1,
                "segmentation": [corners],
                "bbox": [*left_top, *[round(2 * radii[row], 2)] * 2],
                "area": round(3.1 * radii[row] ** 2, 4),
                "iscrowd": 0,
            }
            file.write((", " if row else "") + json.dumps(entry))
        categories = [{"id": c + 1, "name": f"class {c}"} for c in range(NUM_CATEGORIES)]
        file.write('], "categories": ' + json.dumps(categories) + "}")


def load_ours(path: Path) -> int:
    """Number of annotations."""
    from rncdl.data.annotations import load_annotations

    return len(load_annotations(path).annotations.annotation_ids)


def load_json(path: Path) -> int:
    """Number of annotations."""
    with path.open() as file:
        return len(json.load(file)["annotations"])


def measure(load: Callable[[Path], int], path: Path) -> tuple[float, float, float]:
    """Seconds on the clock, seconds of processor time, and the process's peak memory in GB."""
    start, start_cpu = time.perf_counter(), time.process_time()
    count = load(path)
    seconds, cpu_seconds = time.perf_counter() - start, time.process_time() - start_cpu
    assert count == NUM_ANNOTATIONS
    peak_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return seconds, cpu_seconds, peak_kb * 1024 / 1e9


def main() -> None:
    """Make the file, load it both ways, print both and their ratio."""
    spawn = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "made_up.json"
        write_file(path)
        print(f"{path.stat().st_size / 1e6:.0f} MB, {NUM_ANNOTATIONS:,} annotations")
        results: dict[str, tuple[float, ...]] = {}
        for name, load in (("rncdl", load_ours), ("json.load", load_json)):
            with spawn.Pool(1) as pool:
                results[name] = pool.apply(measure, (load, path))
    results["ratio"] = tuple(theirs / ours for ours, theirs in zip(*results.values(), strict=True))
    print(f"{'':12}{'seconds':>10}{'CPU s':>10}{'peak GB':>10}")
    for name, figures in results.items():
        print(f"{name:12}" + "".join(f"{figure:10.2f}" for figure in figures))


if __name__ == "__main__":
    main()
