"""Classification heads of discovery: the known classes and one or more sets of clusters."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Literal, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

TEMPERATURE = 0.1
"""By which cosines are divided to make logits."""


def in_full_precision(features: Tensor) -> torch.autocast:
    """A context in which products are float32 whatever autocast says.

    In bfloat16, cosines over a temperature of 0.1 lose their order among thousands of outputs.
    """
    return torch.autocast(features.device.type, enabled=False)


class KnownHead(nn.Module):
    """The detector's linear classifier without its background row, which is kept as buffers."""

    background_weight: Tensor
    background_bias: Tensor

    def __init__(self, num_features: int, num_known: int) -> None:
        super().__init__()
        self.linear = nn.Linear(num_features, num_known)
        self.register_buffer("background_weight", torch.zeros(num_features))
        self.register_buffer("background_bias", torch.zeros(()))

    @classmethod
    def from_classifier(cls, weight: Tensor, bias: Tensor) -> "KnownHead":
        """From the trained rows, `weight` (K + 1, F) and `bias` (K + 1,), background last."""
        head = cls(weight.shape[1], len(weight) - 1).to(weight)
        with torch.no_grad():
            head.linear.weight.copy_(weight[:-1])
            head.linear.bias.copy_(bias[:-1])
            head.background_weight.copy_(weight[-1])
            head.background_bias.copy_(bias[-1])
        return head

    def forward(self, features: Tensor) -> Tensor:
        """Logits (R, K) of features (R, F), in full precision."""
        with in_full_precision(features):
            return self.linear(features.float())

    def foreground(self, features: Tensor) -> Tensor:
        """One minus the softmax probability of the background among the K + 1 rows, (R,)."""
        with in_full_precision(features):
            background = features.float() @ self.background_weight + self.background_bias
        return torch.sigmoid(self(features).logsumexp(1) - background)


class RowNorm(nn.BatchNorm1d):
    """BatchNorm that takes its running statistics for a single row, which has no variance."""

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002
        """(R, H) normalised rows."""
        if len(input) > 1:
            return super().forward(input)
        return functional.batch_norm(
            input, self.running_mean, self.running_var, self.weight, self.bias, eps=self.eps
        )


@contextmanager
def kept_statistics(heads: nn.Module) -> Iterator[None]:
    """Inside, BatchNorm normalises by the rows it is given and leaves its running statistics."""
    norms = [layer for layer in heads.modules() if isinstance(layer, RowNorm)]
    for norm in norms:
        norm.track_running_stats = False
    try:
        yield
    finally:
        for norm in norms:
            norm.track_running_stats = True


class NovelHead(nn.Module):
    """N clusters, each a prototype that regions are compared with after a small MLP.

    `cosine`: logits are cosines divided by `temperature`; `linear`: inner products plus a bias.
    Without `projection` the prototypes live in the space of the features. With `background` one
    more output, the last, is for regions that show no object.
    """

    def __init__(
        self,
        num_features: int,
        num_clusters: int,
        *,
        hidden_width: int = 2048,
        projection_width: int = 256,
        classifier: Literal["cosine", "linear"] = "cosine",
        temperature: float = TEMPERATURE,
        projection: bool = True,
        background: bool = False,
    ) -> None:
        super().__init__()
        self.classifier = classifier
        self.temperature = temperature
        self.projection = nn.Sequential()
        if projection:
            self.projection = nn.Sequential(
                # BatchNorm takes any bias away again.
                nn.Linear(num_features, hidden_width, bias=False),
                RowNorm(hidden_width),
                nn.ReLU(inplace=True),
                nn.Linear(hidden_width, projection_width),
            )
        width = projection_width if projection else num_features
        self.prototypes = nn.Parameter(functional.normalize(torch.randn(num_clusters, width)))
        self.background = None
        if background:
            self.background = nn.Parameter(functional.normalize(torch.randn(1, width)))
        num_outputs = num_clusters + background
        self.bias = nn.Parameter(torch.zeros(num_outputs)) if classifier == "linear" else None

    def forward(self, features: Tensor) -> Tensor:
        """Logits (R, N), or (R, N + 1) with a background, of features (R, F), in full precision."""
        with in_full_precision(features):
            return self.classify(self.embed(features.float()))

    def embed(self, features: Tensor) -> Tensor:
        """(R, D) what the prototypes are compared with: the MLP's outputs."""
        embeddings: Tensor = self.projection(features)
        return functional.normalize(embeddings) if self.classifier == "cosine" else embeddings

    def classify(self, embeddings: Tensor) -> Tensor:
        """Logits (R, N), or (R, N + 1) with a background, of embeddings (R, D)."""
        weight: Tensor = self.prototypes
        if self.background is not None:
            weight = torch.cat([weight, self.background])
        if self.classifier == "cosine":
            weight = functional.normalize(weight) / self.temperature
        return functional.linear(embeddings, weight, self.bias)

    @torch.no_grad()
    def normalise_prototypes(self) -> None:
        """Gives the prototypes of a cosine classifier length one; to be called after each step."""
        if self.classifier == "cosine":
            self.prototypes.copy_(functional.normalize(self.prototypes))
            if self.background is not None:
                self.background.copy_(functional.normalize(self.background))


class DiscoveryHeads(nn.Module):
    """The known head and the novel heads on the same features, each novel head usable alone."""

    def __init__(self, known: KnownHead, novel: Sequence[NovelHead]) -> None:
        super().__init__()
        self.known = known
        self.novel = cast(Sequence[NovelHead], nn.ModuleList(novel))

    @property
    def num_known(self) -> int:
        """K."""
        return self.known.linear.out_features

    @property
    def num_clusters(self) -> tuple[int, ...]:
        """N of each novel head."""
        return tuple(len(head.prototypes) for head in self.novel)

    @property
    def has_background(self) -> bool:
        """Whether the last output is for regions that show no object."""
        return self.novel[0].background is not None

    def forward(self, features: Tensor) -> list[Tensor]:
        """`logits` of every novel head."""
        return [self.logits(features, head) for head in range(len(self.novel))]

    def logits(self, features: Tensor, head: int = 0) -> Tensor:
        """(R, K + N) by one of the novel heads, of features (R, F); known classes first.

        With a background (R, K + N + 1), its logit last.
        """
        return torch.cat([self.known(features), self.novel[head](features)], 1)

    def probabilities(self, features: Tensor, head: int = 0) -> Tensor:
        """Class probabilities (R, K + N) by one of the novel heads.

        They sum to one, or, with a background, to what it leaves.
        """
        probabilities = self.logits(features, head).softmax(1)
        return probabilities[:, :-1] if self.has_background else probabilities

    def foreground(self, features: Tensor) -> Tensor:
        """How likely each region is an object at all, by the known head's background row, (R,)."""
        return self.known.foreground(features)

    def normalise_prototypes(self) -> None:
        """Gives every cosine prototype length one; to be called after each step."""
        for head in self.novel:
            head.normalise_prototypes()
