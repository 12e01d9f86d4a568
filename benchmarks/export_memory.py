"""Does an export's memory grow with the number of images?

`python benchmarks/export_memory.py`: exports made-up detections of 1,000 and 100,000 images, every
time in a new process, and prints time and peak memory. The images are links to a small file.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from PIL import Image

from rncdl.data.masks import encode_rle, rle_to_json
from rncdl.prediction.folder import PredictionFolder

HEIGHT, WIDTH = 48, 64
OBJECTS = 5
IMAGES_PER_FOLDER = 10_000
"""A file has its own image for so many links: file systems allow 65,000 to one file."""


def make_predictions(folder: Path, num_images: int) -> None:
    """`OBJECTS` detections with masks in each image, of 50 known and novel classes."""
    made = PredictionFolder(folder / "found")
    made.path.mkdir(parents=True)
    rng = np.random.default_rng(0)
    patterns = [_detection(rng) for _ in range(100)]
    with made.images_file.open("w") as images, made.predictions_file.open("w") as lines:
        images.write('{"images": [')
        lines.write("[\n")
        for index in range(num_images):
            file = _place_image(folder / "photos", index)
            entry = {"id": index + 1, "file_name": str(file), "width": WIDTH, "height": HEIGHT}
            images.write(("," if index else "") + json.dumps(entry))
            for row in range(OBJECTS):
                text = patterns[(index * OBJECTS + row) % len(patterns)]
                separator = ",\n" if index or row else ""
                lines.write(f'{separator}{{"image_id": {index + 1}, {text}')
        categories = [
            {"id": i + 1, "name": f"class {i}", "cluster": i - 10 if i >= 10 else None}
            for i in range(50)
        ]
        images.write(f'], "categories": {json.dumps(categories)}}}')
        lines.write("\n]\n")
    made.origin_file.write_text("{}")


def _detection(rng: np.random.Generator) -> str:
    y, x = np.mgrid[:HEIGHT, :WIDTH]
    centre_x, centre_y = rng.uniform(15, WIDTH - 15), rng.uniform(15, HEIGHT - 15)
    mask = (x - centre_x) ** 2 + (y - centre_y) ** 2 <= rng.uniform(4, 14) ** 2
    rows, columns = np.nonzero(mask)
    left, top = int(columns.min()), int(rows.min())
    entry = {
        "category_id": int(rng.integers(50)) + 1,
        "score": round(float(rng.uniform(0.1, 1)), 4),
        "bbox": [left, top, int(columns.max()) + 1 - left, int(rows.max()) + 1 - top],
        "segmentation": rle_to_json(encode_rle(mask)),
    }
    return json.dumps(entry)[1:]


def _place_image(folder: Path, index: int) -> Path:
    place, number = divmod(index, IMAGES_PER_FOLDER)
    first = folder / str(place) / "00000.png"
    if number == 0:
        first.parent.mkdir(parents=True)
        Image.new("RGB", (WIDTH, HEIGHT)).save(first)
        return first
    file = first.with_name(f"{number:05d}.png")
    os.link(first, file)
    return file


def export_once(folder: Path, name: str) -> None:
    """Export, and print seconds and peak megabytes before and after."""
    from rncdl.exports.records import ExportRequest
    from rncdl.stages.export import export

    before, start = _peak_mb(), time.perf_counter()
    export(
        ExportRequest(name, folder / name, 0.1, keep_overlapping=True),
        PredictionFolder(folder / "found"),
        overwrite=False,
    )
    print(f"{time.perf_counter() - start} {before} {_peak_mb()}")


def _peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--formats", default="coco,yolo,voc,label-studio,cvat,huggingface")
    parser.add_argument("--sizes", default="1000,100000")
    parser.add_argument("--one", nargs=2, metavar=("FOLDER", "FORMAT"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        export_once(Path(options.one[0]), options.one[1])
        return
    print("| format | images | seconds | peak MB | of which before the export |")
    print("|---|---:|---:|---:|---:|")
    for size in map(int, options.sizes.split(",")):
        with TemporaryDirectory() as folder:
            make_predictions(Path(folder), size)
            for name in options.formats.split(","):
                said = subprocess.check_output(
                    [sys.executable, __file__, "--one", folder, name],
                    text=True,
                    stderr=subprocess.DEVNULL,
                )
                seconds, before, after = map(float, said.split()[-3:])
                print(
                    f"| {name} | {size:,} | {seconds:.0f} | {after:.0f} | {before:.0f} |",
                    flush=True,
                )


if __name__ == "__main__":
    main()
