"""Time of one discovery step from stored features beside the matrix products it cannot avoid.

The bare cost is that of the products alone, in float32: forward and backward of the heads on the
batch, and forward on batch and memory of either view for the pseudo-labels. One thread; the two
are timed in turn, and the medians compared; of a memory renewed less often the mean between two
renewals. Features gather around 1.2 centres per output, so that the heads learn while they are
timed, as in a run. "moved": the share of the pseudo-labels' mass that the oldest remembered logits
put elsewhere than new ones would.
"""

import argparse
import resource
import statistics
import time
from dataclasses import dataclass

import torch
from torch import Tensor

from rncdl.discovery.heads import DiscoveryHeads, KnownHead, NovelHead
from rncdl.discovery.memory import FeatureMemory
from rncdl.discovery.scratch import Scratch
from rncdl.discovery.step import (
    Labelling,
    Moments,
    Remembered,
    Starts,
    discovery_step,
    pseudo_labels,
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
    renew_memory: int = 1
    """steps between renewals of the memory's logits"""


SIZES = {
    "demo": Size(400, 4_000, 200, 256, 8, 20, 512, 128, renew_memory=2),
    "demo, wide": Size(400, 8_000, 200, 256, 20, 60, 2048, 256),
    "paper": Size(200, 20_000, 100, 1024, 79, 3000, 2048, 256),
}


class World:
    """Heads in training on features around centres."""

    def __init__(self, size: Size, order: str, renew_memory: int) -> None:
        torch.manual_seed(0)
        self.size = size
        self.renew_memory = renew_memory
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
        self.logit_memories = [FeatureMemory(size.num_remembered, outputs) for _ in range(2)]
        for logits in self.logit_memories:
            logits.push(torch.zeros(size.num_remembered, outputs))
        self.starts: Starts | None = None
        self.moments: Moments | None = None
        self.scratch = Scratch()
        self.num_steps = 0

    def draw(self, num_rows: int) -> tuple[Tensor, Tensor]:
        """Features and the centres they belong to."""
        labels = torch.multinomial(self.frequency, num_rows, replacement=True)
        noise = 0.7 * torch.randn(num_rows, self.size.num_features)
        return (self.centres[labels] + noise).relu_(), labels

    def view_of(self, features: Tensor) -> Tensor:
        """The same regions, slightly changed."""
        return features + 0.1 * torch.randn_like(features)

    def prepare(self) -> tuple[tuple[Tensor, Tensor], Tensor, Tensor]:
        """Two views of a batch, labelled features and their labels."""
        features, _ = self.draw(self.size.num_regions)
        labelled, labels = self.draw(self.size.num_labelled)
        views = self.view_of(features), self.view_of(features)
        return views, labelled, labels % self.size.num_known

    def step(self, views: tuple[Tensor, Tensor], labelled: Tensor, labels: Tensor) -> float:
        """One step of training; returns the mean rounds of the assignment."""
        remembered = None
        if self.renew_memory > 1:
            renew = self.num_steps % self.renew_memory == 0
            remembered = Remembered(
                [[m.features()] for m in self.logit_memories], None if renew else self.moments
            )
        loss, figures, carried = discovery_step(
            self.heads,
            views,
            memories=(self.memories[0].features(), self.memories[1].features()),
            labelled=labelled,
            labels=labels,
            labelling=self.labelling,
            alpha=0.5,
            starts=self.starts,
            remembered=remembered,
            seed=self.num_steps,
            scratch=self.scratch,
        )
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        self.optimizer.step()
        self.heads.normalise_prototypes()
        self.starts, self.moments = carried.starts, carried.moments
        for memory, features in zip(self.memories, views, strict=True):
            memory.push(features)
        for memory, (logits,) in zip(self.logit_memories, carried.logits, strict=True):
            memory.push(logits)
        self.num_steps += 1
        return figures.num_rounds

    def moved_mass(self, view: Tensor) -> float:
        """The share of the labels' mass that remembered logits put elsewhere than new ones."""
        remembered = [self.logit_memories[0].features().clone()]
        by_old, by_new = (
            pseudo_labels(
                self.heads,
                view,
                self.memories[0].features(),
                labelling=self.labelling,
                starts=[None],
                remembered=remembered,
                moments=moments,
                seed=self.num_steps,
            )[0].targets
            for moments in (self.moments[0] if self.moments else None, None)
        )
        return 0.5 * (by_old - by_new).abs().sum(1).mean().item()

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


def measure(
    name: str, size: Size, *, order: str, renew_memory: int, num_warm_up: int, num_steps: int
) -> None:
    """Prints one row of the table."""
    world = World(size, order, renew_memory)
    for _ in range(num_warm_up):
        world.step(*world.prepare())
    world.bare_products()
    bare, whole, rounds, moved = [], [], [], []
    while world.num_steps % renew_memory:
        world.step(*world.prepare())
    for _ in range(num_steps * renew_memory):
        begin = time.perf_counter()
        world.bare_products()
        bare.append(time.perf_counter() - begin)
        batch = world.prepare()
        if world.num_steps % renew_memory == renew_memory - 1:  # the oldest logits
            moved.append(world.moved_mass(batch[0][0]))
        begin = time.perf_counter()
        rounds.append(world.step(*batch))
        whole.append(time.perf_counter() - begin)
    # Of the steps between two renewals each counts; the medians are over the rounds of them.
    in_rounds = [whole[start::renew_memory] for start in range(renew_memory)]
    bare_ms = 1e3 * statistics.median(bare)
    whole_ms = 1e3 * statistics.mean(statistics.median(steps) for steps in in_rounds)
    peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(
        f"{name:12} {order:8} {renew_memory:5} {bare_ms:9.1f} {whole_ms:9.1f} "
        f"{whole_ms / bare_ms:9.2f} {statistics.mean(rounds):9.1f} {peak_mb:9.0f} "
        f"{statistics.mean(moved) if renew_memory > 1 else 0:9.4f}"
    )


def main() -> None:
    """Measures the sizes asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", choices=[*SIZES, "all"], default="all")
    parser.add_argument("--order", choices=["mass", "random", "fixed"], default="mass")
    parser.add_argument("--renew-memory", type=int, help="instead of the size's own")
    parser.add_argument("--warm-up", type=int, default=20)
    parser.add_argument("--steps", type=int, default=9)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    columns = ("bare ms", "step ms", "ratio", "rounds", "peak MB", "moved")
    print(f"{'size':12} {'order':8} {'renew':>5}", *(f"{column:>9}" for column in columns))
    for name, size in SIZES.items():
        if arguments.size in (name, "all"):
            measure(
                name,
                size,
                order=arguments.order,
                renew_memory=arguments.renew_memory or size.renew_memory,
                num_warm_up=arguments.warm_up if name != "paper" else min(3, arguments.warm_up),
                num_steps=arguments.steps if name != "paper" else min(4, arguments.steps),
            )


if __name__ == "__main__":
    main()
