"""Time of one discovery step from stored features beside the matrix products it cannot avoid.

The bare cost is that of the products alone, in float32: forward and backward of the heads on the
batch, and forward on batch and memory of either view for the pseudo-labels. One thread; the two
are timed in turn, and the medians compared. Features gather around 1.2 centres per output, so that
the heads learn while they are timed, as in a run.
"""

import argparse
import resource
import statistics
import time
from dataclasses import dataclass

import torch
from torch import Tensor

from rncdl.discovery.feeding import DiscoveryBatch
from rncdl.discovery.heads import DiscoveryHeads, KnownHead, NovelHead
from rncdl.discovery.memory import FeatureMemory
from rncdl.discovery.step import (
    Labelling,
    Starts,
    discovery_step,
)


@dataclass(frozen=True)
class Size:
    """What the cost depends on."""

    num_regions: int
    num_remembered: int
    num_labelled: int
    num_features: int
    num_known: int
    num_clusters: int
    hidden_width: int
    projection_width: int


SIZES = {
    "demo": Size(400, 4_000, 200, 256, 8, 20, 512, 128),
    "demo, wide": Size(400, 8_000, 200, 256, 20, 60, 2048, 256),
    "paper": Size(200, 20_000, 100, 1024, 79, 3000, 2048, 256),
}


class World:
    """Heads in training on features around centres."""

    def __init__(self, size: Size, order: str) -> None:
        torch.manual_seed(0)
        self.size = size
        outputs = size.num_known + size.num_clusters
        self.centres = torch.randn(int(1.2 * outputs), size.num_features)
        self.frequency = torch.linspace(0, -3, len(self.centres)).exp()
        known = KnownHead.from_classifier(
            0.02 * torch.randn(size.num_known + 1, size.num_features),
            torch.zeros(size.num_known + 1),
        )
        novel = NovelHead(
            size.num_features,
            size.num_clusters,
            hidden_width=size.hidden_width,
            projection_width=size.projection_width,
        )
        self.heads = DiscoveryHeads(known, [novel])
        self.optimizer = torch.optim.SGD(self.heads.parameters(), lr=0.01, momentum=0.9)
        self.memories = tuple(
            FeatureMemory(size.num_remembered, size.num_features) for _ in range(2)
        )
        remembered, _ = self.draw(size.num_remembered)
        for memory in self.memories:
            memory.push(self.view_of(remembered))
        self.labelling = Labelling(order=order)  # type: ignore[arg-type]
        self.starts: Starts | None = None
        self.num_steps = 0

    def draw(self, num_rows: int) -> tuple[Tensor, Tensor]:
        """Features and the centres they belong to."""
        labels = torch.multinomial(self.frequency, num_rows, replacement=True)
        noise = 0.7 * torch.randn(num_rows, self.size.num_features)
        return (self.centres[labels] + noise).relu_(), labels

    def view_of(self, features: Tensor) -> Tensor:
        """The same regions, slightly changed."""
        return features + 0.1 * torch.randn_like(features)

    def prepare(self) -> DiscoveryBatch:
        """Two views of a batch, labelled features and their labels."""
        features, _ = self.draw(self.size.num_regions)
        labelled, labels = self.draw(self.size.num_labelled)
        views = self.view_of(features), self.view_of(features)
        return DiscoveryBatch(views, labelled, labels % self.size.num_known)

    def step(self, batch: DiscoveryBatch) -> float:
        """One step of training; returns the mean rounds of the assignment."""
        loss, figures, self.starts = discovery_step(
            self.heads,
            batch,
            memories=(self.memories[0].features(), self.memories[1].features()),
            labelling=self.labelling,
            alpha=0.5,
            starts=self.starts,
            seed=self.num_steps,
        )
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        self.optimizer.step()
        self.heads.normalise_prototypes()
        for memory, features in zip(self.memories, batch.views, strict=True):
            memory.push(features)
        self.num_steps += 1
        return figures.num_rounds.item()

    def bare_products(self) -> None:
        """The matrix products of one step and nothing else."""
        size, novel = self.size, self.heads.novel[0]
        layers = [
            self.heads.known.linear.weight.detach(),
            *(p.detach() for p in novel.projection.parameters() if p.dim() == 2),
            novel.prototypes.detach(),
        ]
        taught = torch.rand(2 * size.num_regions + size.num_labelled, size.num_features)
        inputs = taught
        for index, weight in enumerate(layers):
            outputs = inputs @ weight.T
            outputs.T @ inputs
            if index > 1:
                outputs @ weight
            inputs = taught if index == 0 else outputs
        for memory in self.memories:
            labelled_together = [memory.features(), taught[: size.num_regions]]
            for features in labelled_together:
                inputs = features
                for index, weight in enumerate(layers):
                    outputs = inputs @ weight.T
                    inputs = features if index == 0 else outputs


def measure(name: str, size: Size, *, order: str, num_warm_up: int, num_steps: int) -> None:
    """Prints one row of the table."""
    world = World(size, order)
    for _ in range(num_warm_up):
        world.step(world.prepare())
    world.bare_products()
    bare, whole, rounds = [], [], []
    for _ in range(num_steps):
        begin = time.perf_counter()
        world.bare_products()
        bare.append(time.perf_counter() - begin)
        batch = world.prepare()
        begin = time.perf_counter()
        rounds.append(world.step(batch))
        whole.append(time.perf_counter() - begin)
    bare_ms, whole_ms = (1e3 * statistics.median(times) for times in (bare, whole))
    peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(
        f"{name:12} {order:8} {bare_ms:9.1f} {whole_ms:9.1f} "
        f"{whole_ms / bare_ms:9.2f} {statistics.mean(rounds):9.1f} {peak_mb:9.0f}"
    )


def main() -> None:
    """Measures the sizes asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", choices=[*SIZES, "all"], default="all")
    parser.add_argument("--order", choices=["mass", "random", "fixed"], default="mass")
    parser.add_argument("--warm-up", type=int, default=20)
    parser.add_argument("--steps", type=int, default=9)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    columns = ("bare ms", "step ms", "ratio", "rounds", "peak MB")
    print(f"{'size':12} {'order':8}", *(f"{column:>9}" for column in columns))
    for name, size in SIZES.items():
        if arguments.size in (name, "all"):
            measure(
                name,
                size,
                order=arguments.order,
                num_warm_up=arguments.warm_up if name != "paper" else min(3, arguments.warm_up),
                num_steps=arguments.steps if name != "paper" else min(4, arguments.steps),
            )


if __name__ == "__main__":
    main()
