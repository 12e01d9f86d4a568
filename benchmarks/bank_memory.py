"""Peak memory of discovery does not grow with the bank.

`python benchmarks/bank_memory.py`: 100 steps from a bank of 50 thousand and of 5 million regions
(made-up, F = 16), each in a process of its own; prints the peak resident memory of both.
"""

import json
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch

from rncdl.config import DiscoverSettings, Settings
from rncdl.data.records import ImageRecord
from rncdl.discovery.bank import Bank, BankShape
from rncdl.discovery.feeding import BankFeed, BatchSize
from rncdl.discovery.heads import DiscoveryHeads, KnownHead, NovelHead
from rncdl.discovery.training import train_heads
from rncdl.training.processes import Processes

REGIONS_PER_IMAGE = 50
NUM_FEATURES = 16


def make_bank(folder: Path, num_images: int) -> Bank:
    shape = BankShape(num_images, num_images // 2, 2, REGIONS_PER_IMAGE, 8, NUM_FEATURES)
    Bank.create(folder, shape, {})
    rng = np.random.default_rng(0)
    with (folder / "features.f16").open("r+b") as file:
        for _ in range(num_images):
            block = rng.standard_normal((2, REGIONS_PER_IMAGE, NUM_FEATURES), dtype=np.float32)
            file.write(block.astype(np.float16).tobytes())
    counts = np.full(num_images, REGIONS_PER_IMAGE, dtype=np.int32)
    (folder / "counts.i32").write_bytes(counts.tobytes())
    matched = np.full(num_images // 2, 8, dtype=np.int32)
    (folder / "matched_counts.i32").write_bytes(matched.tobytes())
    return Bank(folder)


def discover(folder: Path, num_images: int) -> None:
    bank = make_bank(folder / "bank", num_images)
    images = [ImageRecord(i, Path(), 1, 1) for i in range(num_images)]
    feed = BankFeed(bank, images, size=BatchSize(8, 8), seed=0)
    heads = DiscoveryHeads(
        KnownHead(NUM_FEATURES, 5),
        [NovelHead(NUM_FEATURES, 50, hidden_width=64, projection_width=32)],
    )
    discover = DiscoverSettings(
        heads=(50,), steps=100, warmup_steps=10, memory_batches=20, batch_images=8
    )
    alone = Processes(rank=0, count=1, device=torch.device("cpu"))
    train_heads(heads, feed, settings=Settings(discover=discover), folder=folder, processes=alone)
    peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps({"regions": num_images * REGIONS_PER_IMAGE, "peak_mb": peak_mb}))


def main() -> None:
    if len(sys.argv) > 1:
        discover(Path(sys.argv[1]), int(sys.argv[2]))
        return
    peaks = []
    for num_images in (1_000, 100_000):
        with tempfile.TemporaryDirectory() as folder:
            words = [sys.executable, __file__, folder, str(num_images)]
            said = subprocess.run(words, capture_output=True, text=True, check=True).stdout
        found = json.loads(said.splitlines()[-1])
        peaks.append(found["peak_mb"])
        print(f"{found['regions']:>9} regions: peak {found['peak_mb']:.0f} MB")
    print(f"difference {peaks[1] - peaks[0]:+.0f} MB, ratio {peaks[1] / peaks[0]:.2f}")


if __name__ == "__main__":
    main()
