"""Settings of every stage: typed, checked, with presets that hold only what they change."""

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from rncdl.errors import UserError, did_you_mean
from rncdl.training.progress import warn

Positive = Annotated[int, Field(gt=0)]
NonNegative = Annotated[int, Field(ge=0)]
Rate = Annotated[float, Field(gt=0)]
Fraction = Annotated[float, Field(ge=0, le=1)]
FirstWeights = Annotated[
    Literal["auto", "none"] | Path,
    # Files of earlier versions say null for none.
    BeforeValidator(lambda value: "none" if value is None else value),
]
Augmentation = Literal["none", "weak", "simclr"]
Changes = Mapping[str, Any] | Sequence[str]
"""Of settings: by name, `{"train.batch_size": 8}`, or in words, `["train.batch_size=8"]`."""
Precision = Literal["auto", "float32", "bfloat16", "float16"]


class _Settings(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class DataSettings(_Settings):
    """How images are read, resized and batched."""

    short_sides_px: tuple[Positive, ...] = (640, 672, 704, 736, 768, 800)
    """Training: the shortest side is drawn from these."""
    long_side_px: Positive = 1333
    """No side is longer than this."""
    eval_short_side_px: Positive = 800
    flip: Fraction = 0.5
    """Probability of a horizontal flip in training."""
    repeat_threshold: Annotated[float, Field(ge=0)] = 0.0
    """Repeat-factor sampling (LVIS: 0.001); 0 turns it off."""
    workers: NonNegative = 2
    """Loading processes per training process; 0 loads in the training process itself."""
    on_bad_image: Literal["error", "skip"] = "error"
    """A missing or broken image stops the run, or is recorded and passed over."""
    cache_mb: NonNegative = 0
    """Decoded images kept in memory, per loading process (worth it for small images only)."""


class DetectorSettings(_Settings):
    """The class-agnostic R-CNN. Defaults are the paper's."""

    backbone: str = "resnet50"
    """resnet10, 18, 34, 50, 101, or `timm:NAME` for any timm feature model or plain ViT."""
    weights: FirstWeights = "auto"
    """What the backbone starts from: a file (a torchvision or timm state dict, safetensors, MoCo
    v2); none; or auto: the best that is installed, cached or can be downloaded, else none."""
    frozen_blocks: NonNegative | Literal["all"] = 0
    """How many of stem, res2, res3, res4, res5 are never trained (paper with MoCo: 2); of a ViT: of
    the patch embedding and its blocks; all: the whole backbone."""
    norm: Literal["batch", "frozen", "group"] = "batch"
    """Backbone: BatchNorm (SyncBN on several GPUs), BatchNorm with fixed statistics, GroupNorm."""
    pixel_mean: tuple[float, float, float] = (123.675, 116.28, 103.53)
    pixel_std: tuple[float, float, float] = (58.395, 57.12, 57.375)
    fpn_channels: Positive = 256
    fpn_norm: bool = True
    """BatchNorm after the FPN's convolutions, which then have no bias (a ViT's: LayerNorm)."""
    anchor_sizes_px: tuple[float, ...] = (32, 64, 128, 256, 512)
    """One per pyramid level, the finest first: P2 to P6."""
    anchor_ratios: tuple[float, ...] = (0.5, 1.0, 2.0)
    rpn_samples: Positive = 256
    objectness: Literal["class", "fit"] = "class"
    """What the RPN's objectness is: class: object or background; fit: how well an anchor fits its
    object, learned from objects alone (ours, after OLN)."""
    proposals_before_nms: Positive = 2000
    """Per level, in training."""
    proposals_after_nms: Positive = 1000
    """Per image, in training."""
    roi_samples: Positive = 512
    roi_positive_share: Fraction = 0.25
    roi_sampling_ratio: NonNegative = 0
    """RoIAlign's points per cell; 0 adapts to the box as Detectron2 does, torchvision uses 2."""
    roi_reference_px: Positive = 224
    """A box of this side is pooled from level 4 (P4), one of half from P3, and so on."""
    box_head_width: Positive = 1024
    """F, the size of a region's feature."""
    box_head_norm: bool = False
    """BatchNorm in the box head's fully connected layers."""
    mask_head_width: Positive = 256
    mask_head_layers: Positive = 4
    mask_head_norm: bool = True
    mask_detail: NonNegative = 0
    """Channels of a part of the mask head that looks at the pixels themselves (ours). It is learned
    in `train.mask_steps`. 0: there is none (the paper)."""
    mask_loss_weight: Rate = 1.0
    """In short trainings the masks lag behind the boxes; more than 1 lets them catch up."""
    masks: Literal["auto", "on", "off"] = "auto"
    """auto: a mask head is built when every annotation has a mask."""
    localisation: bool = False
    """Whether the box head also learns, from objects alone, how well a region fits its object
    (ours, after OLN): `predict.score=localisation` ranks by it."""


LEARNING_SETTINGS = frozenset(
    {
        "weights", "frozen_blocks", "rpn_samples", "proposals_before_nms", "roi_samples",
        "roi_positive_share", "mask_loss_weight", "localisation", "objectness",
    }
)  # fmt: skip
"""Settings of the detector that nothing depends on any more once it is trained."""


class TrainSettings(_Settings):
    """The supervised phase."""

    steps: Positive = 180_000
    augmentation: Augmentation = "none"
    """How far an image's colours and sharpness are distorted, as in `discover.augmentation`, so
    that discovery's distorted views are nothing new to the detector (ours; the paper: none)."""
    batch_size: Positive = 16
    """Images per step over all processes and accumulated parts."""
    accumulate: Positive = 1
    """Parts into which each process cuts its share of the batch, to save memory."""
    rate: Rate = 0.01
    rate_at_start: Annotated[float, Field(ge=0)] = 0.001
    warmup_steps: NonNegative = 1000
    schedule: Literal["steps", "cosine"] = "steps"
    drop_at: tuple[Positive, ...] = (120_000, 160_000)
    """Steps at which the rate is divided by ten (schedule: steps; a cosine ends at zero)."""
    weight_decay: Annotated[float, Field(ge=0)] = 1e-4
    clip_gradient: Annotated[float, Field(ge=0)] = 0.0
    """Largest gradient norm; 0 does not clip."""
    precision: Precision = "auto"
    """auto: float32 on CPU; bfloat16 on GPUs that have it, else float16."""
    log_every: Positive = 20
    checkpoint_every: Positive = 5000
    evaluate_every: NonNegative = 0
    """Steps between measurements of known-class AP on `--val`; 0: only at the end."""
    tensorboard: bool = False
    objects_at: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Share of the steps after which the detector looks through the labelled images for objects
    that nobody labelled, confirmed by `segmentation.segmenter`; from then on they teach boxes and
    masks too (ours). 0: never (the paper)."""
    objects_class: Literal["none", "not_known"] = "none"
    """What the classifier learns from them: nothing; or that they are of no known class, which is
    right where every known object is labelled."""
    objects_from: Literal["regions", "segmenter"] = "regions"
    """Where they are looked for: among the detector's regions; or in whole images, by a segmenter
    that needs no regions (sam), which then finds what the detector does not look at."""
    objects_min_score: Fraction = 0.3
    """Objectness from which a region may be one of them; or the segmenter's own score."""
    objects_min_iou: Fraction = 0.6
    """How well the box of the segmenter's mask must fit the region."""
    objects_per_image: Positive = 4
    """The most of them in an image."""
    mask_steps: NonNegative = 0
    """Steps after the training in which the mask head alone learns on, from the annotations and,
    with `train.objects_at`, from objects that nobody labelled: those the finished detector is
    surest of, cut out by `segmentation.segmenter` from its own masks (ours). 0: none (paper)."""
    map_cache: Path | None = None
    """A folder for the maps of a backbone that is frozen as a whole: computed once, then training
    looks at them instead of the images. Runs that differ behind the backbone, or in their labels,
    can share it."""


class PredictSettings(_Settings):
    """From an image to its detections."""

    proposals_before_nms: Positive = 1000
    """Per level."""
    proposals_after_nms: Positive = 1000
    """Per image."""
    proposal_nms: Fraction = 0.7
    """Paper and torchvision 0.7; the authors use 0.9 once novel classes are on."""
    refinements: Positive = 1
    """How often the regressor moves a box; each time from the features where it then is (the paper:
    once)."""
    mask_share: Fraction = 0.0
    """How far a box is then moved to where its mask ends. 0: not at all (the paper); above, masks
    of all regions are drawn. Masks fit objects of novel classes better than the regressor does."""
    region_nms: Fraction | None = None
    """Of refined boxes that overlap by more than this only the likeliest object is kept, whatever
    their classes (ours); null: all of them (the paper)."""
    score: Literal["softmax", "foreground", "objectness", "localisation"] = "softmax"
    """softmax: class probability. The others multiply it by how likely the region is an object:
    foreground by the known head's old background row, objectness by the RPN, localisation by the
    RPN and by how well the region seems to fit (`detector.localisation`)."""
    known: Literal["discovered", "trained"] = "discovered"
    """Who classifies the known classes after discovery: its heads (the paper), or the detector's
    own classifier as it was trained, which has not forgotten the background (ours)."""
    min_score: Fraction = 1e-4
    nms: Fraction = 0.5
    """Per class."""
    max_detections: Positive = 300
    batch_size: Positive = 4


class DiscoverSettings(_Settings):
    """The discovery phase."""

    heads: Annotated[
        tuple[Positive, ...], BeforeValidator(lambda value: () if value == "auto" else value)
    ] = (3000,)
    """Clusters N of each novel head; all are trained at once and each is usable alone. auto, noted
    as []: a quarter more than a teacher lets one estimate."""
    steps: Positive = 15_000
    batch_images: Positive = 16
    """Pool images per step over all processes."""
    labelled_images: Positive = 16
    """Labelled images per step over all processes, for the supervised term."""
    alpha: Annotated[float, Field(ge=0)] = 0.5
    """Weight of the supervised term."""
    rate: Rate = 0.01
    rate_at_start: Annotated[float, Field(ge=0)] = 1e-5
    rate_at_end: Annotated[float, Field(ge=0)] = 1e-3
    warmup_steps: NonNegative = 3000
    regions_per_image: Positive = 50
    region_nms: Fraction | None = None
    """NMS among the proposals (0.8, 0.9, 0.99); null: none, the paper's choice."""
    matched_regions_per_image: Positive = 128
    """The most matched proposals of a labelled image that enter the supervised term."""
    views: Annotated[int, Field(ge=2)] = 4
    """Views of each image in the bank; a step draws two of them."""
    augmentation: Augmentation = "weak"
    """How far a view's colours and sharpness are distorted: as in SimCLR, half as far (the paper),
    or not at all (ours: the image itself, its mirror image, and so on in turn)."""
    online: bool = False
    """Fresh views of the images in each step, instead of the bank's."""
    memory_batches: NonNegative = 100
    """Batches of features that each view remembers."""
    classifier: Literal["cosine", "linear"] = "cosine"
    projection: bool = True
    """An MLP before the novel classifier."""
    hidden_width: Positive = 2048
    projection_width: Positive = 256
    pseudo_labels: Literal["sinkhorn", "kmeans", "distilled"] = "sinkhorn"
    """sinkhorn: balanced by the class shares. kmeans: nearest centroids. distilled (ours, after
    SimGCD): the heads' own probabilities, sharpened; the loss pulls their means to the shares."""
    swap: bool = True
    """Each view is taught by the other view's pseudo-labels."""
    partner_iou: Annotated[float, Field(gt=0, le=1)] | None = None
    """In the second view a region is replaced by one drawn from those of its image that overlap it
    at least this much, so that boxes of one object teach each other; null: by none, as in the
    paper."""
    sharpness: Rate = 10.0
    """Exponent of the assignment: high is hard. The paper's 20, which its code halves."""
    prior: Literal["lognormal", "uniform"] = "lognormal"
    prior_sigma: Rate = 0.5
    order: Literal["mass", "random", "fixed"] = "mass"
    """Which class gets which share: the most mass the largest; drawn anew; by position."""
    max_rounds: Positive = 500
    """The assignment stops when the class shares are right, or after this many rounds."""
    teacher: str = "none"
    """A frozen network that looks once at each object, cut out of its background; what looks alike
    to it is one class (ours). A timm model's name, auto: the best that can be had, none: the heads
    teach themselves, as in the paper."""
    neighbours: NonNegative = 0
    """With a teacher (ours): in the second view a region that shows an object is replaced by one
    that shows one of so many objects of other images that look most alike to the teacher, all
    else as `partner_iou` says, and the heads teach themselves (`pseudo_labels`). 0: the teacher's
    labels teach them."""
    frozen: Literal["all_but_heads", "roi_heads_free", "nothing"] = "all_but_heads"
    single_phase: bool = False
    """Ablation: discovery from an untrained detector, with all detector losses."""
    precision: Precision = "auto"
    log_every: Positive = 50
    checkpoint_every: Positive = 1000
    tensorboard: bool = False

    @property
    def is_taught(self) -> bool:
        """Whether a teacher's labels teach the heads, and not they themselves."""
        return self.teacher != "none" and self.neighbours == 0


class TeacherSettings(_Settings):
    """What the teacher of discovery looks at, and how objects are grouped in its eyes (ours)."""

    weights: FirstWeights = "auto"
    """A file, or auto: what is installed, cached or can be downloaded."""
    objects_per_image: Positive = 6
    """The most regions that may be objects, after NMS, the likeliest first."""
    masks: Literal["auto", "both", "own", "segmenter", "none"] = "auto"
    """What objects are cut out by: the detector's mask head, `segmentation.segmenter`, or of both
    the mask that agrees with the region better; none: not at all, what lies around them is shown
    too. auto: cut out or not, whichever lets the teacher tell the known classes better."""
    outlines: bool | Literal["auto"] = "auto"
    """Whether it also looks at each object's outline alone, filled with white, so that form counts
    as much as surface; only where objects are cut out. auto: as with `masks`."""
    crop_px: Positive = 96
    """Side of what it is shown; DINOv2 takes multiples of 14, such as 224."""
    padding: Fraction = 0.1
    """Margin around the object, as a share of its longer side."""
    gate: Fraction = 0.02
    """Share of the annotated objects that may be taken for background: a region is an object from
    the certainty on that leaves so many of them out. How certain: the IoU that the detector
    predicts for it (detector.localisation), or without that its IoU with the box of its mask."""
    known_prototypes: Positive = 2
    """Centroids of a known class; clusters have as many on average before they are joined."""


class SegmentationSettings(_Settings):
    """Masks of objects by a method that knows no class (ours)."""

    segmenter: Literal["none", "grabcut", "sam"] = "none"
    """none: the mask head alone. grabcut: by colour, from the box alone, without weights. sam:
    MobileSAM, prompted by the box."""
    sam_weights: Path | None = None
    """MobileSAM's weights, mobile_sam.pt."""
    sam_px: Annotated[int, Field(gt=0, multiple_of=64)] = 1024
    """Longer side of the images as it looks at them; 384 or 512 is as good for small photographs,
    and five to ten times as fast."""
    sam_points: Positive = 16
    """Per side of the grid of points that it is asked about (`train.objects_from=segmenter`)."""


class BaselineSettings(_Settings):
    """The systems to compare with, as far as they are trained."""

    features: Literal["crops", "bank"] = "crops"
    """What UNO and ORCA look at: crops with a network of their own, as in the paper, or the bank's
    frozen region features, which costs a small part of it."""
    crop_px: Positive = 224
    """Side of a crop after it was padded to a square and resized."""
    steps: Positive = 50_000
    """Of each training; UNO takes as many again to learn the known classes first."""
    batch_images: Positive = 64
    """Pool images per step, and as many labelled ones."""
    crops_per_image: Positive = 16
    """Regions drawn from each pool image, per step and for k-means."""
    augmentation: Augmentation = "weak"
    """How far the crops' colours are distorted."""
    rate: Rate = 0.1
    """Peak of the learning rate, reached in the first tenth of the steps; a cosine follows."""
    uno_heads: Positive = 4
    """Clustering heads, and as many over-clustering ones; the one with the least loss is kept."""
    uno_overclustering: Positive = 4
    """Clusters of an over-clustering head, in multiples of N."""


class Settings(_Settings):
    """Everything a run was told to do; saved in the run folder."""

    seed: NonNegative = 0
    device: str = "auto"
    """auto, cpu, cuda, cuda:1, mps"""
    data: DataSettings = DataSettings()
    detector: DetectorSettings = DetectorSettings()
    train: TrainSettings = TrainSettings()
    discover: DiscoverSettings = DiscoverSettings()
    predict: PredictSettings = PredictSettings()
    teacher: TeacherSettings = TeacherSettings()
    segmentation: SegmentationSettings = SegmentationSettings()
    baselines: BaselineSettings = BaselineSettings()


RETIRED: Mapping[str, bool | float | str] = {
    "data.group_by_aspect": True,
    "detector.anchor_offset": "corner",
    "detector.proposal_nms": 0.7,
    "detector.roi_positive_iou": 0.5,
    "detector.rpn_negative_iou": 0.3,
    "detector.rpn_positive_iou": 0.7,
    "detector.rpn_positive_share": 0.5,
    "detector.size_divisor": 32,
    "detector.stride_in_1x1": False,
    "train.channels_last": True,
    "train.keep_checkpoints": 2,
    "train.momentum": 0.9,
    "train.rate_at_end": 0.0,
    "discover.keep_checkpoints": 2,
    "discover.momentum": 0.9,
    "discover.prior_mean": 1.0,
    "discover.renew_memory": 1,
    "discover.share_tolerance": 1e-3,
    "discover.temperature": 0.1,
    "discover.weight_decay": 1e-4,
    "baselines.weng_hyperbolic": True,
}
"""Settings of earlier versions, which files may still hold, and the value that now always holds."""


def preset_names() -> list[str]:
    """Names of the built-in presets."""
    files = resources.files("rncdl").joinpath("presets").iterdir()
    return sorted(f.name.removesuffix(".yaml") for f in files if f.name.endswith(".yaml"))


def resolve_settings(
    preset: str | Path | None = None, overrides: Sequence[str] = (), base: Settings | None = None
) -> Settings:
    """`base` (or the defaults), changed by a preset (name or YAML file), then by `a.b=value`.

    A preset that says `based_on: NAME` changes what that built-in preset leaves.
    """
    values = (base or Settings()).model_dump()
    if preset is not None:
        _apply_preset(values, preset)
    for word in overrides:
        key, equals, text = word.partition("=")
        if not equals:
            raise UserError(
                f"Override {word!r} is not of the form key=value, e.g. train.batch_size=8."
            )
        try:
            value = yaml.safe_load(text)
        except yaml.YAMLError as error:
            raise UserError(
                f"Override {word!r}: {text!r} is not a YAML value ({error})."
            ) from error
        changes = _nest(key.split("."), value)
        _warn_of_retired(changes, source=word)
        _merge(values, changes, source=f"override {word!r}")
    return _validate(values)


def as_overrides(changes: Changes) -> list[str]:
    """Changes in words, `a.b=value`: `{"train.steps": 5}` and `{"train": {"steps": 5}}` alike."""
    if not isinstance(changes, Mapping):
        return list(changes)
    return [f"{key}={_as_yaml(key, value)}" for key, value in _leaves(changes)]


def _as_yaml(key: str, value: Any) -> str:
    plain = str(value) if isinstance(value, Path) else value
    try:
        text = yaml.safe_dump(plain, default_flow_style=True, width=float("inf"))
    except yaml.YAMLError as error:
        raise UserError(
            f"Setting {key!r}: {value!r} is a {type(value).__name__}; give a plain Python value."
        ) from error
    return text.removesuffix("...\n").strip()


def change(settings: Settings, **changes: Any) -> Settings:
    """The settings with these in place of theirs: `change(settings, seed=3, predict={"nms": 0.4})`.

    A group keeps what is not named.
    """
    values = settings.model_dump()
    _merge(values, changes, source="a change")
    return _validate(values)


def load_settings(path: Path) -> Settings:
    """Settings saved by `save_settings`."""
    return resolve_settings(path)


def dump_settings(settings: Settings) -> str:
    """The settings as YAML, all of them."""
    return yaml.safe_dump(settings.model_dump(mode="json"), sort_keys=False)


def setting_changes(before: Settings, now: Settings) -> dict[str, tuple[Any, Any]]:
    """`group.name` -> both values, of every setting that is not as it was."""
    old, new = (dict(_leaves(settings.model_dump(mode="json"))) for settings in (before, now))
    return {key: (old[key], new[key]) for key in new if new[key] != old[key]}


def _leaves(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value


def _apply_preset(values: dict[str, Any], preset: str | Path) -> None:
    """Write a preset over `values` in place, after the one that it is based on."""
    changes = _read_preset(preset)
    foundation = changes.pop("based_on", None)
    if foundation is not None:
        if foundation not in preset_names():
            hint = did_you_mean(str(foundation), preset_names())
            raise UserError(
                f"{preset}: based_on = {foundation!r} is not a built-in preset.{hint} "
                f"Presets: {', '.join(preset_names())}."
            )
        _apply_preset(values, foundation)
    _warn_of_retired(changes, source=str(preset))
    _merge(values, changes, source=f"preset {preset}")


def _read_preset(preset: str | Path) -> dict[str, Any]:
    if isinstance(preset, str) and preset in preset_names():
        text = resources.files("rncdl").joinpath("presets", f"{preset}.yaml").read_text("utf-8")
    elif Path(preset).is_file():
        text = Path(preset).read_text("utf-8")
    else:
        names = preset_names()
        hint = did_you_mean(str(preset), names)
        raise UserError(
            f"No preset or YAML file {str(preset)!r}.{hint} Presets: {', '.join(names)}."
        )
    try:
        values = yaml.safe_load(text) or {}
    except yaml.YAMLError as error:
        raise UserError(f"{preset}: not valid YAML ({error}).") from error
    if not isinstance(values, dict):
        raise UserError(f"{preset}: must hold `key: value` lines, not a {type(values).__name__}.")
    return values


def _nest(keys: Sequence[str], value: Any) -> dict[str, Any]:
    return {keys[0]: value if len(keys) == 1 else _nest(keys[1:], value)}


def _merge(
    values: dict[str, Any], changes: Mapping[str, Any], *, source: str, path: tuple[str, ...] = ()
) -> None:
    """Write `changes` over `values` in place, refusing keys that are not settings."""
    for key, change in changes.items():
        dotted = ".".join((*path, str(key)))
        if dotted in RETIRED:
            continue
        if key not in values:
            hint = did_you_mean(dotted, _dotted_keys(Settings().model_dump()))
            raise UserError(f"Unknown setting {dotted!r} in {source}.{hint}")
        if isinstance(values[key], dict):
            if not isinstance(change, Mapping):
                raise UserError(
                    f"Setting {dotted!r} in {source} is a group; "
                    f"set one of its keys: {', '.join(values[key])}."
                )
            _merge(values[key], change, source=source, path=(*path, key))
        else:
            values[key] = change


def _warn_of_retired(changes: Mapping[str, Any], *, source: str) -> None:
    found = {key: value for key, value in _leaves(changes) if key in RETIRED}
    for key, value in found.items():
        if value != RETIRED[key]:
            _warn_once(
                f"{source}: {key} = {value!r} has no effect. It is no longer a setting; "
                f"{RETIRED[key]!r} is used instead."
            )
    unchanged = [key for key, value in found.items() if value == RETIRED[key]]
    if unchanged:
        _warn_once(
            f"{source}: no longer settings, and fixed at the values given: {', '.join(unchanged)}."
        )


@cache
def _warn_once(message: str) -> None:
    """However often a file is read."""
    warn(message)


def _dotted_keys(values: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    for key, value in values.items():
        yield prefix + key
        if isinstance(value, Mapping):
            yield from _dotted_keys(value, f"{prefix}{key}.")


def _validate(values: dict[str, Any]) -> Settings:
    try:
        return Settings.model_validate(values)
    except ValidationError as error:
        problems = [
            f"  {'.'.join(map(str, found['loc']))} = {found['input']!r}: {found['msg']}"
            for found in error.errors()
        ]
        raise UserError("\n".join(["Settings out of range:", *problems])) from error
