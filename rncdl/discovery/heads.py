"""Classification heads of discovery: the known classes and one or more sets of clusters."""

from collections.abc import Sequence
from typing import Literal, cast

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules.batchnorm import _BatchNorm

from rncdl.discovery.scratch import Scratch

# Elements of the hidden layer handled at once on a CPU, about what a core's cache holds: at the
# paper's size this makes the MLP cost 1.05 to 1.1 times its products; torch's batch_norm, 1.25.
_BLOCK_ELEMENTS = 1 << 19


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
        """Logits (R, K) of features (R, F)."""
        return self.linear(features)

    @torch.no_grad()
    def classify(self, features: Tensor, *, out: Tensor) -> Tensor:
        """The same logits, without gradients, put in `out`."""
        return torch.mm(features, self.linear.weight.T, out=out).add_(self.linear.bias)

    def foreground(self, features: Tensor) -> Tensor:
        """One minus the softmax probability of the background among the K + 1 rows, (R,)."""
        background = features @ self.background_weight + self.background_bias
        return torch.sigmoid(self(features).logsumexp(1) - background)


class NovelHead(nn.Module):
    """N clusters, each a prototype that regions are compared with after a small MLP.

    `cosine`: logits are cosines divided by `temperature`; `linear`: inner products plus a bias.
    Without `projection` the prototypes live in the space of the features.
    """

    def __init__(
        self,
        num_features: int,
        num_clusters: int,
        *,
        hidden_width: int = 2048,
        projection_width: int = 256,
        classifier: Literal["cosine", "linear"] = "cosine",
        temperature: float = 0.1,
        projection: bool = True,
    ) -> None:
        super().__init__()
        self.classifier = classifier
        self.temperature = temperature
        self.projection = nn.Sequential()
        if projection:
            self.projection = nn.Sequential(
                # BatchNorm takes any bias away again.
                nn.Linear(num_features, hidden_width, bias=False),
                nn.BatchNorm1d(hidden_width),
                nn.ReLU(inplace=True),
                nn.Linear(hidden_width, projection_width),
            )
        width = projection_width if projection else num_features
        self.prototypes = nn.Parameter(functional.normalize(torch.randn(num_clusters, width)))
        self.bias = nn.Parameter(torch.zeros(num_clusters)) if classifier == "linear" else None

    def forward(self, features: Tensor) -> Tensor:
        """Logits (R, N) of features (R, F).

        A single row, having no variance, is normalised by the running statistics in training too.
        """
        alone = len(features) < 2 and len(self.projection) > 0
        return self.classify(self._embed_alone(features) if alone else self.projection(features))

    @torch.no_grad()
    def embed_jointly(
        self, features: Tensor, *, moments: Tensor | None = None, scratch: Scratch | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """The MLP's outputs (R, D), no gradient, and the moments that BatchNorm normalised by.

        `moments` (2, H): mean and variance of the hidden units, from an earlier call; None: those
        of these very rows. The running statistics are left alone, in either mode of the module,
        and used for a single row, which has no variance; it and a head without MLP have no moments.
        """
        if not self.projection:
            return features, None
        if len(features) < 2 and moments is None:
            return self._embed_alone(features), None
        linear, norm, output = self._layers()
        scratch = scratch or Scratch()
        hidden = scratch.matrix("hidden", len(features), len(linear.weight), like=features)
        torch.mm(features, linear.weight.T, out=hidden)
        on_cpu = features.device.type == "cpu"
        block_rows = max(1, _BLOCK_ELEMENTS // hidden.shape[1]) if on_cpu else len(hidden)
        blocks = hidden.split(block_rows)
        changed = torch.empty_like(blocks[0])
        if moments is None:
            # Without a pass over the hidden units: their mean is that of the features, mapped.
            mean = linear.weight @ features.mean(0)
            squares = torch.zeros_like(mean)
            for block in blocks:
                squares += torch.sub(block, mean, out=changed[: len(block)]).square_().sum(0)
            moments = torch.stack([mean, squares / len(features)])
        mean, variance = moments
        scale = norm.weight * (variance + norm.eps).rsqrt()
        shift = norm.bias - mean * scale
        embeddings = features.new_empty(len(features), output.out_features)
        for block, embedded in zip(blocks, embeddings.split(block_rows), strict=True):
            active = torch.addcmul(shift, block, scale, out=changed[: len(block)]).relu_()
            torch.mm(active, output.weight.T, out=embedded).add_(output.bias)
        return embeddings, moments

    def _embed_alone(self, features: Tensor) -> Tensor:
        linear, norm, output = self._layers()
        hidden = functional.batch_norm(
            linear(features),
            norm.running_mean,
            norm.running_var,
            norm.weight,
            norm.bias,
            eps=norm.eps,
        )
        return output(functional.relu(hidden))

    def _layers(self) -> tuple[nn.Linear, _BatchNorm, nn.Linear]:
        linear, norm, _, output = self.projection
        assert isinstance(linear, nn.Linear)
        assert isinstance(norm, _BatchNorm)
        assert isinstance(output, nn.Linear)
        return linear, norm, output

    def classify(self, embeddings: Tensor, *, out: Tensor | None = None) -> Tensor:
        """Logits (R, N) of the MLP's outputs (R, D); without gradients they may be put in `out`."""
        weight: Tensor = self.prototypes
        if self.classifier == "cosine":
            weight = functional.normalize(weight) / self.temperature
            embeddings = functional.normalize(embeddings)
        if out is None:
            return functional.linear(embeddings, weight, self.bias)
        torch.mm(embeddings, weight.T, out=out)
        return out if self.bias is None else out.add_(self.bias)

    @torch.no_grad()
    def normalise_prototypes(self) -> None:
        """Gives the prototypes of a cosine classifier length one; to be called after each step."""
        if self.classifier == "cosine":
            self.prototypes.copy_(functional.normalize(self.prototypes))


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

    def forward(self, features: Tensor) -> list[Tensor]:
        """The same as `logits`."""
        return self.logits(features)

    def logits(self, features: Tensor) -> list[Tensor]:
        """For each novel head, logits (R, K + N) of features (R, F), known classes first."""
        known = self.known(features)
        return [torch.cat([known, head(features)], 1) for head in self.novel]

    def probabilities(self, features: Tensor, head: int = 0) -> Tensor:
        """Class probabilities (R, K + N) by one of the novel heads."""
        return torch.cat([self.known(features), self.novel[head](features)], 1).softmax(1)

    def foreground(self, features: Tensor) -> Tensor:
        """How likely each region is an object at all, by the known head's background row, (R,)."""
        return self.known.foreground(features)

    def normalise_prototypes(self) -> None:
        """Gives every cosine prototype length one; to be called after each step."""
        for head in self.novel:
            head.normalise_prototypes()
