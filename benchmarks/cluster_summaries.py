"""Time and peak memory of cluster summaries, at the paper's size.

`python benchmarks/cluster_summaries.py`: made-up banks of 100 thousand and of 500 thousand regions
(F = 1024, K = 80, N = 3000), each summarised in a process of its own. The goal for the larger one:
under 2 minutes and 2 GB on 2 cores.
"""

import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch

from rncdl.discovery.bank import Bank, BankShape
from rncdl.discovery.heads import DiscoveryHeads, KnownHead, NovelHead
from rncdl.gallery.summaries import summarise_clusters
from rncdl.gallery.thumbnails import plan_thumbnails

REGIONS_PER_IMAGE = 50
NUM_FEATURES, NUM_KNOWN, NUM_CLUSTERS = 1024, 80, 3000


def make_bank(folder: Path, num_images: int) -> None:
    """A bank of one view, whose images repeat after 512: reading and arithmetic do not mind."""
    shape = BankShape(num_images, 1, 1, REGIONS_PER_IMAGE, 1, NUM_FEATURES)
    Bank.create(folder, shape, {})
    rng = np.random.default_rng(0)
    block = rng.standard_normal((512, REGIONS_PER_IMAGE, NUM_FEATURES), dtype=np.float32).clip(0)
    content = block.astype(np.float16).tobytes()
    with (folder / "features.f16").open("r+b") as file:
        left = num_images * REGIONS_PER_IMAGE * NUM_FEATURES * 2
        while left:
            left -= file.write(content[:left])
    counts = np.full(num_images, REGIONS_PER_IMAGE, dtype=np.int32)
    (folder / "counts.i32").write_bytes(counts.tobytes())


def summarise(folder: Path) -> None:
    torch.manual_seed(0)
    known = KnownHead(NUM_FEATURES, NUM_KNOWN)
    heads = DiscoveryHeads(known, [NovelHead(NUM_FEATURES, NUM_CLUSTERS)])
    began = time.perf_counter()
    found = summarise_clusters(
        Bank(folder), heads, exemplars=plan_thumbnails(NUM_CLUSTERS).per_kind
    )
    figures = {
        "regions": int(found.sizes.sum() + found.known_sizes.sum()),
        "seconds": time.perf_counter() - began,
        "peak_gb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6,
        "threads": torch.get_num_threads(),
    }
    print(json.dumps(figures))


def main() -> None:
    print(f"{'regions':>10} {'threads':>8} {'seconds':>8} {'regions/s':>10} {'peak GB':>8}")
    for num_images in (2_000, 10_000):
        with tempfile.TemporaryDirectory() as place:
            make_bank(Path(place), num_images)
            words = [sys.executable, __file__, place]
            done = subprocess.run(words, capture_output=True, text=True, check=True)
        figures = json.loads(done.stdout)
        rate = figures["regions"] / figures["seconds"]
        print(
            f"{figures['regions']:>10,} {figures['threads']:>8} {figures['seconds']:>8.1f} "
            f"{rate:>10,.0f} {figures['peak_gb']:>8.2f}"
        )


if __name__ == "__main__":
    summarise(Path(sys.argv[1])) if len(sys.argv) > 1 else main()
