"""Speed of the ONNX file in ONNX Runtime beside PyTorch on the CPU.

Both go from an image's pixels to boxes, scores, labels and masks of 28 x 28, one image at a time,
and take turns, so that whatever else the machine does slows both alike. With --run, the detector is
that of a run; otherwise one with random weights and the settings of --preset, whose scores are
meaningless but whose work is the same.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

import rncdl
from rncdl.config import resolve_settings
from rncdl.data.given_images import pixels_of
from rncdl.data.image_paths import find_images
from rncdl.data.samples import unlabelled_sample
from rncdl.data.transforms import resize_sample
from rncdl.detector.model import Detector
from rncdl.exports.onnx import open_onnx, write_onnx
from rncdl.prediction.classifier import trained_classifier
from rncdl.prediction.inference import Inference, detect_samples
from rncdl.prediction.predictor import Predictor

NUM_KNOWN = 80
WARMUP_IMAGES = 3


def random_predictor(preset: str, overrides: list[str]) -> Predictor:
    settings = resolve_settings(preset, ["device=cpu", *overrides])
    detector = Detector(settings.detector, NUM_KNOWN, masks=True).eval()
    known = tuple(f"class {label}" for label in range(NUM_KNOWN))
    return Predictor(detector, trained_classifier(detector, known), settings)


def in_torch(predictor: Predictor) -> Callable[[np.ndarray], object]:
    inference = Inference(predictor.detector, [predictor.classifier], predictor.settings)
    data = predictor.settings.data

    def run(pixels: np.ndarray) -> object:
        sample = unlabelled_sample(
            torch.from_numpy(pixels).permute(2, 0, 1), image_index=0, path=""
        )
        resized = resize_sample(
            sample, short_side_px=data.eval_short_side_px, long_side_px=data.long_side_px
        )
        return detect_samples(inference, [resized])

    return run


def in_onnx(predictor: Predictor, folder: Path, threads: int) -> Callable[[np.ndarray], object]:
    write_onnx(predictor, folder / "detector.onnx")
    session = open_onnx(folder / "detector.onnx", threads=threads)
    return lambda pixels: session.run(None, {"image": pixels})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("images", nargs="+", help="image files, folders, globs")
    parser.add_argument("--run", type=Path)
    parser.add_argument("--preset", default="coco-half-lvis")
    parser.add_argument("--set", nargs="*", default=[], metavar="KEY=VALUE")
    parser.add_argument("--most", type=int, default=100, help="of the images")
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(0)
    if arguments.run is None:
        predictor = random_predictor(arguments.preset, arguments.set)
    else:
        predictor = rncdl.load(arguments.run, device="cpu", settings=arguments.set)
    seconds: dict[str, list[float]] = {"torch": [], "onnx": []}
    with tempfile.TemporaryDirectory() as folder:
        ways = {
            "torch": in_torch(predictor),
            "onnx": in_onnx(predictor, Path(folder), arguments.threads),
        }
        for turn, file in enumerate(
            find_images(arguments.images, outside=Path(folder))[: arguments.most]
        ):
            pixels = np.ascontiguousarray(pixels_of(file).permute(1, 2, 0).numpy())
            for name, run in ways.items():
                start = time.perf_counter()
                run(pixels)
                if turn >= WARMUP_IMAGES:
                    seconds[name].append(time.perf_counter() - start)
    settings = predictor.settings
    print(
        f"{settings.detector.backbone}, {settings.data.eval_short_side_px} px, "
        f"{arguments.threads} threads, {len(seconds['torch'])} images"
    )
    for name, times in seconds.items():
        print(f"{name:6} {1000 * statistics.median(times):8.1f} ms an image (median)")
    ratios = [b / a for a, b in zip(seconds["torch"], seconds["onnx"], strict=True)]
    print(f"ratio  {statistics.median(ratios):8.2f} (onnx / torch)")


if __name__ == "__main__":
    main()
