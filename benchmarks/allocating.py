"""What is it worth that freed memory is kept (`rncdl.training.allocating`)?

`OMP_NUM_THREADS=1 python benchmarks/allocating.py [--rounds 5]`

Processes with and without it in turn: the maps of 8 images of 384 px (preset `photographs`), and
supervised steps of 4 images of 128 px (preset `shapes`), random weights. Prints medians, ratios
and the peak memory.
"""

import argparse
import json
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable

import torch

from rncdl.config import resolve_settings
from rncdl.data.samples import Sample
from rncdl.detector.losses import SupervisedStep
from rncdl.detector.model import Detector
from rncdl.evaluation.ap_tables import markdown_table
from rncdl.training.allocating import keep_freed_memory

KNOWN = 8
WARM, TIMED = 2, 5


def made_up(preset: str, *, masks: bool) -> Detector:
    torch.manual_seed(0)
    return Detector(resolve_settings(preset).detector, KNOWN, masks=masks)


def find_maps() -> Callable[[], object]:
    detector = made_up("photographs", masks=False).eval()
    images = [torch.randint(0, 255, (3, 384, 384), dtype=torch.uint8) for _ in range(8)]

    @torch.inference_mode()
    def look() -> object:
        return detector.feature_maps(detector.batch_images(images))

    return look


def step() -> Callable[[], object]:
    detector = made_up("shapes", masks=True).train()
    model = SupervisedStep(detector)
    boxes = torch.tensor([[10.0, 10, 60, 60], [50, 40, 120, 110]])
    masks = torch.zeros(2, 128, 128, dtype=torch.uint8)
    masks[0, 10:60, 10:60] = masks[1, 40:110, 50:120] = 1
    samples = [
        Sample(
            image=torch.randint(0, 255, (3, 128, 128), dtype=torch.uint8),
            boxes_xyxy=boxes,
            labels=torch.tensor([0, 1]),
            masks=masks,
            image_index=index,
            path="",
            original_size=(128, 128),
        )
        for index in range(4)
    ]

    def learn() -> object:
        torch.stack(list(model(samples).values())).sum().backward()
        return None

    return learn


TASKS = {"maps of 8 images of 384 px": find_maps, "a step of 4 images of 128 px": step}


def run_one(title: str, *, keep: bool) -> None:
    """Seconds of one pass and peak memory, as JSON, of a process of its own."""
    torch.set_num_threads(1)
    if keep:
        keep_freed_memory()
    run = TASKS[title]()
    for _ in range(WARM):
        run()
    began = time.perf_counter()
    for _ in range(TIMED):
        run()
    seconds = (time.perf_counter() - began) / TIMED
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps([seconds, peak]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--one", choices=TASKS, help="of the processes that are timed")
    parser.add_argument("--keep", action="store_true")
    options = parser.parse_args()
    if options.one:
        run_one(options.one, keep=options.keep)
        return
    rows = []
    for title in TASKS:
        found: dict[bool, list[list[float]]] = {False: [], True: []}
        for _ in range(options.rounds):
            for keep, results in found.items():
                words = ["--one", title, *(["--keep"] if keep else [])]
                done = subprocess.run(
                    [sys.executable, __file__, *words], capture_output=True, text=True, check=True
                )
                results.append(json.loads(done.stdout))
        seconds = [statistics.median(one[0] for one in results) for results in found.values()]
        peaks = [f"{max(one[1] for one in results):.0f} MB" for results in found.values()]
        times = [f"{1000 * one:.0f} ms" for one in seconds]
        rows.append([title, *times, f"{seconds[1] / seconds[0]:.2f}", *peaks])
    header = ["", "given back", "kept", "ratio", "peak, given back", "peak, kept"]
    print(markdown_table(header, rows))


if __name__ == "__main__":
    main()
