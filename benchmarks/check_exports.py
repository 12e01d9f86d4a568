"""Are our exports what other people's code reads? Each is read back and compared, object by object.

`python benchmarks/check_exports.py`: makes environments of its own for label-studio-sdk, datumaro,
fiftyone and ultralytics in a temporary folder (pip, from the registry that is configured), exports
made-up detections in every format that they read, and prints a table. `--environments FOLDER` keeps
the environments for the next time. supervision, pycocotools and datasets read exports in the tests.
"""

import argparse
import base64
import json
import os
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from PIL import Image
from pycocotools import mask as coco_mask

from rncdl.data.masks import encode_rle, rle_to_json
from rncdl.exports.records import ExportRequest, Shape
from rncdl.prediction.folder import PredictionFolder
from rncdl.stages.export import export

HEIGHT, WIDTH = 72, 96
NUM_IMAGES = 24
CLASSES = ("cat & dog", "novel_0000", "blaue Tür")


@dataclass(frozen=True)
class Environment:
    """What pip installs; `borrow`: the packages of this environment (torch) are seen, too."""

    packages: tuple[str, ...]
    borrow: bool = False


ENVIRONMENTS = {
    "label-studio-sdk": Environment(("label-studio-sdk", "opencv-python-headless<5")),
    "datumaro": Environment(("datumaro", "opencv-python-headless<5")),
    "fiftyone": Environment(("fiftyone", "pycocotools")),
    # Without its dependencies, of which torch is one: the pair that is here must stay a pair.
    "ultralytics": Environment(("--no-deps", "ultralytics", "psutil", "requests"), borrow=True),
}


@dataclass(frozen=True)
class Check:
    """One export and its reader, with what the reader's own conventions allow for."""

    format: str
    shape: Shape
    reader: str
    tolerance_px: float = 0.01
    shift: tuple[float, float, float, float] = (0, 0, 0, 0)
    """what the reader makes of the box's sides"""

    @property
    def package(self) -> str:
        return self.reader.partition(":")[0]


CHECKS = (
    Check("coco", Shape.MASK, "datumaro:coco_instances"),
    Check("coco", Shape.POLYGON, "datumaro:coco_instances"),
    Check("yolo", Shape.BOX, "datumaro:yolo"),
    # It takes VOC's pixels, which count from 1 to the last one included, for coordinates.
    Check("voc", Shape.BOX, "datumaro:voc_detection", 0.51, (1, 1, 0, 0)),
    *(Check("cvat", shape, "datumaro:cvat") for shape in Shape),
    *(Check("label-studio", shape, "label-studio-sdk") for shape in Shape),
    Check("fiftyone", Shape.MASK, "fiftyone"),
    Check("yolo", Shape.BOX, "ultralytics:detect"),
    Check("yolo", Shape.POLYGON, "ultralytics:segment"),
)


def make_predictions(folder: Path) -> tuple[PredictionFolder, list[dict[str, Any]]]:
    """Made-up detections, and the same as objects to compare with."""
    rng = np.random.default_rng(0)
    made = PredictionFolder(folder / "found")
    made.path.mkdir()
    images, lines, objects = [], [], []
    for number in range(1, NUM_IMAGES + 1):
        file = folder / "photos" / f"Ordner {number % 2}" / f"bild ä {number // 2}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 255, (HEIGHT, WIDTH, 3), dtype=np.uint8)).save(file)
        images.append({"id": number, "file_name": str(file), "width": WIDTH, "height": HEIGHT})
        for _ in range(number % 6):
            mask = _ellipse(rng)
            box = coco_mask.toBbox(encode_rle(mask)) + rng.uniform(0, 0.2, 4) * (-1, -1, 1, 1)
            category = int(rng.integers(len(CLASSES)))
            score = round(float(rng.uniform(0.2, 1)), 6)
            segmentation = rle_to_json(encode_rle(mask))
            found = {"image_id": number, "category_id": category + 1, "score": score}
            lines.append(json.dumps({**found, "bbox": box.tolist(), "segmentation": segmentation}))
            sides = np.array([*box[:2], *(box[:2] + box[2:])])
            objects.append(
                {
                    "image": f"Ordner {number % 2}__{file.stem}",
                    "source": file.stem,
                    "label": CLASSES[category],
                    "score": score,
                    "box": sides.clip(0, [WIDTH, HEIGHT, WIDTH, HEIGHT]),
                    "mask": mask,
                }
            )
    categories = [
        {"id": i + 1, "name": name, "cluster": i - 1 if i else None}
        for i, name in enumerate(CLASSES)
    ]
    made.images_file.write_text(json.dumps({"images": images, "categories": categories}))
    made.origin_file.write_text("{}")
    made.predictions_file.write_text("[\n" + ",\n".join(lines) + "\n]\n")
    return made, objects


def _ellipse(rng: np.random.Generator) -> np.ndarray:
    """One that lies a pixel away from the image's edges."""
    y, x = np.mgrid[:HEIGHT, :WIDTH]
    radius_x, radius_y = rng.uniform(4, 20), rng.uniform(4, 20)
    centre_x = rng.uniform(radius_x + 1, WIDTH - radius_x - 2)
    centre_y = rng.uniform(radius_y + 1, HEIGHT - radius_y - 2)
    return ((x - centre_x) / radius_x) ** 2 + ((y - centre_y) / radius_y) ** 2 <= 1


def make_environment(folder: Path, environment: Environment) -> Path:
    """The environment's Python, with the packages installed unless they are."""
    python = folder / "bin" / "python"
    if (folder / "complete").is_file():
        return python
    venv.create(folder, with_pip=True, clear=True)
    subprocess.run(
        [python, "-m", "pip", "install", "--quiet", *environment.packages],
        check=True,
        stderr=subprocess.DEVNULL,
    )
    if environment.borrow:
        site = subprocess.check_output(
            [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"], text=True
        )
        Path(site.strip(), "borrowed.pth").write_text(sysconfig.get_path("purelib") + "\n")
    (folder / "complete").touch()
    return python


def read_back(python: Path, check: Check, folder: Path) -> list[dict[str, Any]]:
    script = Path(__file__).with_name("export_readers.py")
    home = {"YOLO_CONFIG_DIR": str(folder.parent), "HOME": str(folder.parent), "YOLO_OFFLINE": "1"}
    kept = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    done = subprocess.run(
        [python, script, check.reader, folder],
        env={**kept, **home},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(done.stderr.strip().splitlines()[-1])
    return json.loads(done.stdout.splitlines()[-1])


def compare(
    check: Check, expected: Sequence[dict[str, Any]], found: list[dict[str, Any]]
) -> tuple[float, float]:
    """The largest difference of a box's side in pixels, the smallest IoU of masks (NaN without)."""
    if len(found) != len(expected):
        raise RuntimeError(f"{len(found)} objects instead of {len(expected)}")
    left, worst, lowest = list(found), 0.0, float("nan")
    for one in expected:
        box = one["box"]
        if check.shape is not Shape.BOX and check.format != "fiftyone":
            rows, columns = np.nonzero(one["mask"])
            box = [columns.min(), rows.min(), columns.max() + 1, rows.max() + 1]
        names = {one["image"], one["source"], one["image"].replace(" ", "_")}
        candidates = [
            other for other in left if other["image"] in names and other["label"] == one["label"]
        ]
        apart = [np.abs(np.array(c["box"]) - box - check.shift).max() for c in candidates]
        if not apart:
            raise RuntimeError(f"{one['label']} in {one['image']} is missing")
        best = candidates[int(np.argmin(apart))]
        left.remove(best)
        worst = max(worst, min(apart))
        if "score" in best and abs(best["score"] - one["score"]) > 1e-6:
            raise RuntimeError(f"score {best['score']} instead of {one['score']}")
        if check.shape is not Shape.BOX:
            lowest = float(np.fmin(lowest, _iou(one["mask"], best)))
    if worst > check.tolerance_px:
        raise RuntimeError(f"a box is {worst:.3f} px away")
    return worst, lowest


def _iou(mask: np.ndarray, found: dict[str, Any]) -> float:
    if "polygon" in found:
        polygons = coco_mask.frPyObjects([found["polygon"]], HEIGHT, WIDTH)
        other = coco_mask.decode(coco_mask.merge(polygons)).astype(bool)
    else:
        bits = np.frombuffer(base64.b64decode(found["mask"]["bits"]), np.uint8)
        other = np.unpackbits(bits)[: mask.size].reshape(found["mask"]["shape"]).astype(bool)
    return float((mask & other).sum() / (mask | other).sum())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--environments", type=Path, help="keep them in this folder")
    parser.add_argument("--only", default="", help="a package: only what it reads")
    options = parser.parse_args()
    failed = 0
    with TemporaryDirectory() as temporary:
        made, objects = make_predictions(Path(temporary))
        environments = (options.environments or Path(temporary) / "environments").absolute()
        print("| export | reader | objects | farthest side of a box | lowest IoU of masks |")
        print("|---|---|---:|---:|---:|")
        checks = [check for check in CHECKS if check.package.startswith(options.only)]
        for index, check in enumerate(checks):
            out = Path(temporary) / str(index) / check.format
            request = ExportRequest(
                check.format, out, 0.1, keep_overlapping=True, shape=check.shape
            )
            export(request, made, overwrite=False)
            try:
                python = make_environment(environments / check.package, ENVIRONMENTS[check.package])
                found = read_back(python, check, out)
                worst, lowest = compare(check, objects, found)
                iou = "" if np.isnan(lowest) else f"{lowest:.3f}"
                result = f"{len(found)} | {worst:.3f} px | {iou} |"
            except (RuntimeError, subprocess.CalledProcessError) as error:
                failed += 1
                result = f"FAILED: {error} | | |"
            print(f"| {check.format}, {check.shape} | {check.reader} | {result}", flush=True)
    print(f"\nrncdl {version('rncdl')}; {failed} of {len(checks)} failed")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
