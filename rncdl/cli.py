"""Arguments of every command; the work is in `stages`.

Stages are imported when a command runs, so that `--help` answers at once.
"""

import inspect
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial, wraps
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from rncdl.exports.exported import MIN_SCORE, Only, Placing, Shape
from rncdl.training.launching import is_one_of_many, one_gpu_or_two_processes, run_in_processes
from rncdl.version import __version__

SHARED_COMMANDS = (
    *("run", "train", "discover", "estimate-classes", "evaluate", "predict", "promote", "compare"),
    *("ablate", "demo"),
)


class _Root(TyperGroup):
    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except Exception as error:
            if getattr(error, "option_name", None) in (
                "--processes",
                "-p",
                "--nodes",
                "--rendezvous",
            ):
                raise _not_shared(ctx.invoked_subcommand) from error
            raise


def _not_shared(command: str | None) -> typer.BadParameter:
    return typer.BadParameter(
        f"the work of {command} is not shared; leave out --processes and --nodes. "
        f"They are for {', '.join(SHARED_COMMANDS)}."
    )


app = typer.Typer(
    name="rncdl",
    cls=_Root,
    help="Train a detector on the classes you labelled; discover and detect those you did not.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
prepare_app = typer.Typer(help="Make or check datasets.", no_args_is_help=True)
app.add_typer(prepare_app, name="prepare")
export_app = typer.Typer(
    help="Take what was found to another tool, or the detector to another program.",
    subcommand_metavar="FORMAT [ARGS]...",
    no_args_is_help=True,
)
app.add_typer(export_app, name="export")

RunOption = Annotated[Path, typer.Option("--run", "-R", help="The run folder.")]
ImagesOption = Annotated[
    Path | None, typer.Option("--images", help="Image folder, if not relative to the labels.")
]
PresetOption = Annotated[
    str | None,
    typer.Option("--preset", help="A built-in preset (see `rncdl info`) or a YAML file."),
]
OverridesArgument = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[KEY=VALUE]...",
        help="Settings to change, e.g. train.batch_size=8 (all of them: `rncdl settings`).",
        show_default=False,
    ),
]
ValArgument = Annotated[Path, typer.Argument(help="COCO, LVIS or other labels of all classes.")]
SeedsOption = Annotated[str, typer.Option("--seeds", help="Seeds of every row, with commas.")]
PoolOption = Annotated[
    list[Path] | None,
    typer.Option(
        "--unlabelled",
        help="Folder of images, or a dataset; needed only where no discovery has noted the images.",
    ),
]
PoolImagesOption = Annotated[
    Path | None, typer.Option("--unlabelled-images", help="Image folder of --unlabelled jsons.")
]
LikeOption = Annotated[
    str | None,
    typer.Option(
        "--discovery",
        help="Whose settings and images all rows start from; default: the newest finished one.",
    ),
]
ResultsNameOption = Annotated[
    str,
    typer.Option("--name", help="Keep the results under this name; a run may hold several."),
]
UsedDiscoveryOption = Annotated[
    str | None,
    typer.Option(
        "--discovery",
        help="The discovery to use; default: the newest finished one, if any. 'trained': the "
        "detector without a discovery.",
    ),
]
HeadOption = Annotated[
    int, typer.Option("--head", min=0, help="Which novel head, where there are several.")
]
RawOption = Annotated[
    bool, typer.Option("--raw", help="Clusters as they are, whatever people have decided.")
]
OldNameOption = Annotated[str | None, typer.Option("--name", hidden=True)]


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"rncdl {__version__}")
        raise typer.Exit


def _now_discovery(name: str | None) -> str | None:
    """What --name was given where it still means --discovery, with a notice."""
    from rncdl.training.progress import warn

    if name is not None:
        warn("--name is now --discovery here; please use that.")
    return name


ProcessesOption = Annotated[
    int | None,
    typer.Option(
        "--processes",
        "-p",
        metavar="N",
        min=1,
        help="Share the work among N processes on this machine (with --nodes: on each machine): "
        "one for each GPU, or for each core of a small CPU.",
    ),
]
NodesOption = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        min=1,
        help="Share the work among N machines: give the same command on each of them. They need "
        "the run folder on a disk that all see, and --rendezvous.",
    ),
]
RendezvousOption = Annotated[
    str | None,
    typer.Option(
        metavar="HOST:PORT",
        help="With --nodes: one of the machines, as the others reach it, and a free port on it.",
    ),
]


@dataclass(frozen=True)
class _Sharing:
    """Among how many processes and machines the work is shared; None: not said."""

    processes: int | None = None
    nodes: int | None = None
    rendezvous: str | None = None

    def run(self) -> None:
        """Let those processes run this command line, and leave when they are done.

        Does nothing in those processes themselves, and where there is to be one alone.
        """
        processes, nodes = self.processes or 1, self.nodes or 1
        if (nodes > 1) != (self.rendezvous is not None):
            raise typer.BadParameter(
                "--nodes, if more than 1, and --rendezvous go together: give both on each machine"
            )
        if max(processes, nodes) > 1 and not is_one_of_many():
            code = run_in_processes(
                processes, sys.argv[1:], nodes=nodes, rendezvous=self.rendezvous
            )
            raise typer.Exit(code)


def _shared(
    command: Callable[..., None], *, default: Callable[[], int] | None = None
) -> Callable[..., None]:
    """The command with --processes, --nodes and --rendezvous, which may also stand before it.

    `default`: the number of processes where nothing is said of it.
    """

    def run_shared(
        context: typer.Context,
        processes: ProcessesOption = None,
        nodes: NodesOption = None,
        rendezvous: RendezvousOption = None,
        **arguments: Any,
    ) -> None:
        before: _Sharing = context.obj
        processes, nodes = processes or before.processes, nodes or before.nodes
        if default is not None and processes is None and nodes is None and not is_one_of_many():
            processes = default()
        _Sharing(processes, nodes, rendezvous or before.rendezvous).run()
        command(**arguments)

    *added, _ = _parameters_of(run_shared)
    return _signed(run_shared, like=command, parameters=[*_parameters_of(command), *added])


def _parameters_of(function: Callable[..., None]) -> list[inspect.Parameter]:
    return list(inspect.signature(function).parameters.values())


def _signed(
    function: Callable[..., None],
    *,
    like: Callable[..., None],
    parameters: Sequence[inspect.Parameter],
) -> Callable[..., None]:
    """The function with the name and help of another, and with these parameters for typer."""
    wraps(like)(function)
    named = [one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for one in parameters]
    function.__signature__ = inspect.Signature(named)  # type: ignore[attr-defined]
    function.__annotations__ = {one.name: one.annotation for one in named}
    return function


@app.callback()
def _root(
    context: typer.Context,
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version."),
    ] = False,
    processes: ProcessesOption = None,
    nodes: NodesOption = None,
    rendezvous: RendezvousOption = None,
) -> None:
    """Train a detector on the classes you labelled; discover and detect those you did not."""
    context.obj = _Sharing(processes, nodes, rendezvous)
    if context.obj != _Sharing() and context.invoked_subcommand not in SHARED_COMMANDS:
        raise _not_shared(context.invoked_subcommand)


@app.command()
def info() -> None:
    """Show versions, devices and presets."""
    from rncdl.stages.info import show_info

    show_info()


@app.command()
def settings(preset: PresetOption = None, overrides: OverridesArgument = None) -> None:
    """Print every setting, as a preset and overrides leave it."""
    from rncdl.config import dump_settings, resolve_settings

    typer.echo(dump_settings(resolve_settings(preset, overrides or [])), nl=False)


@prepare_app.command("shapes")
def shapes(
    out: Annotated[Path, typer.Argument(help="Folder to draw into.")],
    classes: Annotated[int, typer.Option(min=2, max=1000, help="Classes in all.")] = 20,
    known: Annotated[int, typer.Option(min=1, help="Of which known.")] = 8,
    size: Annotated[int, typer.Option(min=32, help="Image side in pixels.")] = 128,
    labelled: Annotated[int, typer.Option(min=1, help="Labelled training images.")] = 1200,
    unlabelled: Annotated[int, typer.Option(min=0, help="Unlabelled training images.")] = 1200,
    val: Annotated[int, typer.Option(min=1, help="Validation images.")] = 300,
    imbalance: Annotated[
        float, typer.Option(min=1.0, help="The most frequent class over the rarest.")
    ] = 10.0,
    seed: Annotated[int, typer.Option(min=0, help="Same seed, same bytes.")] = 0,
    styles: Annotated[
        int, typer.Option(min=1, max=4, help="Manners in which each class is drawn.")
    ] = 1,
    photographs: Annotated[
        Path | None, typer.Option(help="Folder of photographs to lie behind the objects.")
    ] = None,
) -> None:
    """Draw a world of textured shapes: a dataset made by code, with exact boxes and masks."""
    from rncdl.data.shapes import World
    from rncdl.stages.prepare import prepare_shapes

    world = World(
        num_classes=classes,
        num_known=known,
        image_px=size,
        num_labelled=labelled,
        num_unlabelled=unlabelled,
        num_val=val,
        imbalance=imbalance,
        seed=seed,
        num_styles=styles,
        photographs=photographs,
    )
    prepare_shapes(out, world)


@prepare_app.command("coco-half-lvis")
def coco_half_lvis(
    coco: Annotated[
        Path, typer.Option("--coco", help="Folder of instances_*2017.json, train2017, val2017.")
    ],
    lvis: Annotated[Path, typer.Option("--lvis", help="Folder of lvis_v1_train.json and _val.")],
    out: Annotated[Path, typer.Option("--out", help="Folder to write into.")],
    seed: Annotated[int, typer.Option(min=0, help="Decides which half is labelled.")] = 0,
    authors_split: Annotated[
        Path | None,
        typer.Option(
            "--authors-split",
            help="Folder of the authors' coco_half_train.json and coco_half_val.json, "
            "to be followed instead of the seed.",
        ),
    ] = None,
) -> None:
    """Make the paper's first setting: half of COCO labelled, LVIS's classes to be found."""
    from rncdl.stages.prepare_public import prepare_coco_half_lvis

    prepare_coco_half_lvis(coco, lvis, out, seed=seed, authors_split=authors_split)


@prepare_app.command("lvis-vg")
def lvis_vg(
    lvis: Annotated[Path, typer.Option("--lvis", help="Folder of lvis_v1_train.json and _val.")],
    vg: Annotated[
        Path,
        typer.Option(
            "--vg", help="Folder of image_data.json, objects.json (v1.4), VG_100K, VG_100K_2."
        ),
    ],
    out: Annotated[Path, typer.Option("--out", help="Folder to write into.")],
    coco: Annotated[
        Path | None,
        typer.Option("--coco", help="Folder of train2017 and val2017, if not that of --lvis."),
    ] = None,
) -> None:
    """Make the paper's second setting: LVIS labelled, Visual Genome's classes to be found."""
    from rncdl.stages.prepare_public import prepare_lvis_vg

    prepare_lvis_vg(lvis, vg, out, coco=coco)


@prepare_app.command("check")
def check(
    file: Annotated[Path, typer.Argument(help="A dataset in any format, or a folder of images.")],
    images: ImagesOption = None,
    train: Annotated[
        Path | None,
        typer.Option("--train", help="A dataset to train on, which must not share images with it."),
    ] = None,
    train_images: Annotated[
        Path | None, typer.Option("--train-images", help="Image folder of --train.")
    ] = None,
) -> None:
    """List what is wrong with a dataset, and where. Exit code 1 if anything is.

    Formats: COCO, LVIS, YOLO, PASCAL VOC, Label Studio's JSON, CVAT for images 1.1.
    """
    from rncdl.stages.prepare import check_dataset

    raise typer.Exit(check_dataset(file, images, train=train, train_images=train_images))


@prepare_app.command("convert")
def convert(
    dataset: Annotated[
        Path,
        typer.Argument(
            help="data.yaml or folder (YOLO), folder or list (PASCAL VOC), json (Label Studio, "
            "COCO, LVIS), xml (CVAT for images 1.1)."
        ),
    ],
    out: Annotated[Path, typer.Option("--out", help="The COCO json to write.")],
    images: ImagesOption = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Write over a file that is there.")
    ] = False,
) -> None:
    """Write a dataset of another format as COCO. Other commands read these formats, too."""
    from rncdl.stages.prepare import convert_dataset

    convert_dataset(dataset, images, out, overwrite=overwrite)


@app.command("run")
@_shared
def run_all(
    labelled: Annotated[Path, typer.Argument(help="COCO or LVIS json of the known classes.")],
    out: Annotated[Path, typer.Option("--out", help="The run folder.")],
    images: ImagesOption = None,
    unlabelled: Annotated[
        list[Path] | None,
        typer.Option("--unlabelled", help="Folder of images or a json; may be given repeatedly."),
    ] = None,
    unlabelled_images: PoolImagesOption = None,
    val: Annotated[
        Path | None, typer.Option("--val", help="Json with all annotations, to measure on.")
    ] = None,
    val_images: Annotated[
        Path | None, typer.Option("--val-images", help="Image folder of --val.")
    ] = None,
    known: Annotated[
        str | None,
        typer.Option("--known", help="Known classes: names with commas, or a file of them."),
    ] = None,
    size: Annotated[
        str | None,
        typer.Option(
            "--size",
            help="tiny (a first look on a CPU), small, standard (a GPU) or paper; default: "
            "standard on a GPU, else tiny.",
        ),
    ] = None,
    overrides: OverridesArgument = None,
) -> None:
    """Do everything: check the data, plan, train, discover, report.

    The plan fits the settings to the data and the machine and is shown before anything starts.
    After a stop of any kind the same command goes on where it was.
    """
    from rncdl.training.progress import say

    say(f"rncdl {__version__}: {labelled} -> {out}")

    from rncdl.planning.request import RunRequest
    from rncdl.stages.run import run_everything

    run_everything(
        RunRequest(
            labelled=labelled,
            images=images,
            unlabelled=tuple(unlabelled or ()),
            unlabelled_images=unlabelled_images,
            val=val,
            val_images=val_images,
            known=known,
            size=size,
            overrides=tuple(overrides or ()),
        ),
        out,
    )


@app.command()
@_shared
def train(
    run: RunOption,
    labelled: Annotated[
        Path | None,
        typer.Option("--labelled", help="Labels of the known classes: COCO, LVIS, YOLO, ..."),
    ] = None,
    images: ImagesOption = None,
    known: Annotated[
        str | None,
        typer.Option(
            "--known",
            help="Known classes: names with commas, or a file with one per line. "
            "Default: those that have annotations in the labelled json.",
        ),
    ] = None,
    val: Annotated[
        Path | None, typer.Option("--val", help="Labels to evaluate on (train.evaluate_every).")
    ] = None,
    val_images: Annotated[
        Path | None, typer.Option("--val-images", help="Image folder of --val.")
    ] = None,
    start_from: Annotated[
        Path | None,
        typer.Option("--start-from", help="A run whose detector is trained further."),
    ] = None,
    preset: PresetOption = None,
    resume: Annotated[
        bool,
        typer.Option(
            "--resume",
            help="Continue this run from its newest checkpoint; settings given with it are saved.",
        ),
    ] = False,
    overrides: OverridesArgument = None,
) -> None:
    """Train the detector on the known classes.

    On several GPUs: rncdl train --processes 4 --run DIR ...
    On several machines, the same on each: ... --processes 4 --nodes 2 --rendezvous HOST:29400
    (or torchrun ... -m rncdl train -R DIR ...; it would take --run for an option of its own).
    """
    from rncdl.config import resolve_settings
    from rncdl.training.progress import say

    if preset is None and not resume:
        steps = resolve_settings(overrides=overrides or []).train.steps
        say(f"No --preset: the paper's settings, but for those you named: {steps:,} steps.")

    from rncdl.run_folder import TrainingInputs
    from rncdl.stages.train import begin_training, resume_training

    if resume:
        resume_training(run, overrides or [])
    elif labelled is None:
        raise typer.BadParameter("give --labelled JSON to begin a run, or --resume to continue one")
    else:
        inputs = TrainingInputs.of_files(
            labelled, images=images, val=val, val_images=val_images, start_from=start_from
        )
        settings = resolve_settings(preset, overrides or [])
        begin_training(run, inputs, settings=settings, known=known, warn_if_long=True)


@app.command()
@_shared
def discover(
    run: RunOption,
    unlabelled: Annotated[
        list[Path] | None,
        typer.Option(
            "--unlabelled", help="Folder of images, or a dataset; may be given repeatedly."
        ),
    ] = None,
    unlabelled_images: Annotated[
        Path | None, typer.Option("--unlabelled-images", help="Image folder of --unlabelled jsons.")
    ] = None,
    labelled: Annotated[
        Path | None,
        typer.Option("--labelled", help="Labels, if not those the run was trained on."),
    ] = None,
    images: ImagesOption = None,
    discovery: Annotated[
        str, typer.Option("--discovery", help="A name for it; a run may hold several discoveries.")
    ] = "main",
    name: OldNameOption = None,
    preset: PresetOption = None,
    online: Annotated[
        bool, typer.Option("--online", help="The same as discover.online=true.")
    ] = False,
    resume: Annotated[
        bool,
        typer.Option("--resume", help="Continue this discovery; settings given with it are saved."),
    ] = False,
    overrides: OverridesArgument = None,
) -> None:
    """Discover classes: train heads that tell known classes and new clusters apart.

    Region features are extracted once into the run's bank and reused by every later discovery.
    """
    from rncdl.inputs import named_inputs
    from rncdl.run_folder import RunFolder
    from rncdl.stages.discover import discover as run_discovery

    named = None
    if unlabelled or labelled:
        named = named_inputs(
            RunFolder(run),
            unlabelled or [],
            unlabelled_images=unlabelled_images,
            labelled=labelled,
            images=images,
        )
    run_discovery(
        run,
        named,
        name=_now_discovery(name) or discovery,
        preset=preset,
        resume=resume,
        overrides=[*(overrides or []), *(["discover.online=true"] if online else [])],
    )


@app.command("estimate-classes")
@_shared
def estimate_classes(
    run: RunOption,
    unlabelled: Annotated[
        list[Path] | None,
        typer.Option("--unlabelled", help="Folder of images or a json; may be given repeatedly."),
    ] = None,
    unlabelled_images: Annotated[
        Path | None, typer.Option("--unlabelled-images", help="Image folder of --unlabelled jsons.")
    ] = None,
    preset: PresetOption = None,
    overrides: OverridesArgument = None,
) -> None:
    """Estimate how many new classes there are: known classes are the yardstick.

    A teacher (discover.teacher, else the best that can be had) looks at the objects of the pool;
    what it has seen is kept for `discover`. With discover.heads=auto it takes half as many clusters
    again.
    """
    from rncdl.inputs import named_inputs
    from rncdl.run_folder import RunFolder
    from rncdl.stages.estimate_classes import estimate_classes as run_estimate

    inputs = named_inputs(RunFolder(run), unlabelled or [], unlabelled_images=unlabelled_images)
    run_estimate(run, inputs, preset=preset, overrides=overrides or [])


@app.command()
@_shared
def evaluate(
    val: Annotated[Path, typer.Argument(help="COCO, LVIS or other labels of all classes.")],
    run: Annotated[Path | None, typer.Option("--run", "-R", help="The run folder.")] = None,
    images: ImagesOption = None,
    discovery: Annotated[
        str | None,
        typer.Option(
            "--discovery",
            help="The discovery to evaluate; default: the newest finished one. 'trained': the "
            "detector without a discovery.",
        ),
    ] = None,
    name: OldNameOption = None,
    predictions: Annotated[
        Path | None,
        typer.Option("--predictions", help="Evaluate this COCO-results json instead of a run."),
    ] = None,
    known: Annotated[
        str | None, typer.Option("--known", help="With --predictions: the known classes.")
    ] = None,
    train_labels: Annotated[
        Path | None,
        typer.Option(
            "--train-labels",
            help="Fully labelled training json, for rare / common / frequent where VAL has none.",
        ),
    ] = None,
    raw: RawOption = False,
    overrides: OverridesArgument = None,
) -> None:
    """Measure a run, or a file of predictions, on a validation file.

    Clusters that people have named (rncdl name) count as the class of that name in VAL.
    """
    from rncdl.stages import evaluate as stage

    if (run is None) == (predictions is None):
        raise typer.BadParameter("give either --run or --predictions")
    if run is not None:
        stage.evaluate(
            run,
            val,
            images=images,
            name=_now_discovery(name) or discovery,
            train_labels=train_labels,
            overrides=overrides or [],
            raw=raw,
        )
    elif predictions is not None:
        stage.evaluate_predictions(
            predictions,
            val,
            images=images,
            known=known,
            train_labels=train_labels,
            overrides=overrides or [],
        )


@app.command()
@_shared
def predict(
    images: Annotated[
        list[str],
        typer.Argument(
            metavar="IMAGE|KEY=VALUE",
            help="Files, folders (searched through) and globs, and settings to change, "
            "e.g. predict.max_detections=100.",
            show_default=False,
        ),
    ],
    run: RunOption,
    out: Annotated[Path, typer.Option("--out", help="Folder for the predictions.")],
    discovery: UsedDiscoveryOption = None,
    head: HeadOption = 0,
    min_score: Annotated[
        float | None,
        typer.Option(
            "--min-score",
            min=0,
            max=1,
            help="Keep, and draw, detections above this score; default: predict.min_score for "
            "the file, 0.10 for drawings.",
        ),
    ] = None,
    draw: Annotated[
        bool, typer.Option("--draw", help="Also write the images with detections on them.")
    ] = False,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Start anew where --out holds predictions.")
    ] = False,
    raw: RawOption = False,
) -> None:
    """Find known classes and clusters in any images.

    Clusters are named, merged and ignored as people have decided (rncdl name). OUT gets
    predictions.json (COCO results with the name of the class or cluster), images.json (the images
    and categories they speak of) and, with --draw, drawings. Interrupted, the same command goes on
    where it stopped. An image that cannot be read is reported, noted in skipped_images.jsonl and
    passed over; the exit code is then 3.
    """
    from rncdl.prediction.predictor import HeadChoice
    from rncdl.stages.predict import predict as run_prediction

    num_skipped = run_prediction(
        images,
        run,
        out=out,
        choice=HeadChoice(discovery, head, raw),
        min_score=min_score,
        draw=draw,
        overwrite=overwrite,
    )
    raise typer.Exit(3 if num_skipped else 0)


def _export_detections(
    format_name: str,
    out: Annotated[Path, typer.Option("--out", help="Folder for the export.")],
    images: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="IMAGE|KEY=VALUE",
            help="Files, folders and globs to look at, and settings, as for `rncdl predict`.",
            show_default=False,
        ),
    ] = None,
    run: Annotated[
        Path | None, typer.Option("--run", "-R", help="The run folder, with images.")
    ] = None,
    predictions: Annotated[
        Path | None,
        typer.Option("--predictions", help="A folder of `rncdl predict`, instead of images."),
    ] = None,
    discovery: UsedDiscoveryOption = None,
    head: HeadOption = 0,
    raw: RawOption = False,
    min_score: Annotated[
        float, typer.Option("--min-score", min=0, max=1, help="Export detections above this score.")
    ] = MIN_SCORE,
    only: Annotated[Only, typer.Option("--only", help="Which classes.")] = Only.ALL,
    keep_overlapping: Annotated[
        bool,
        typer.Option("--keep-overlapping", help="Also what overlaps a better detection."),
    ] = False,
    shape: Annotated[
        Shape | None,
        typer.Option("--shape", help="Default: the most exact one that the format has."),
    ] = None,
    placing: Annotated[
        Placing,
        typer.Option(
            "--images",
            help="Link (copy where links cannot be), copy or leave the image files.",
        ),
    ] = Placing.LINK,
    val_share: Annotated[
        float, typer.Option("--val-share", min=0, max=0.9, help="Share of validation images.")
    ] = 0.1,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Start anew where --out holds an export.")
    ] = False,
) -> None:
    """Write what is found in images, or was found by `rncdl predict`.

    Clusters are named, merged and ignored as people have decided (rncdl name). Interrupted, the
    same command goes on where it stopped. An image that cannot be read or has vanished is reported,
    noted in skipped_images.jsonl and passed over; the exit code is then 3.
    """
    from rncdl.exports.exported import ExportRequest
    from rncdl.exports.writers import writer_for
    from rncdl.prediction.folder import PredictionFolder
    from rncdl.prediction.predictor import HeadChoice
    from rncdl.stages import export as stage

    if (predictions is None) == (run is None or not images):
        raise typer.BadParameter("give either --run and images, or --predictions")
    request = ExportRequest(
        format=format_name,
        out=out,
        min_score=min_score,
        only=only,
        keep_overlapping=keep_overlapping,
        shape=shape,
        placing=placing,
        val_share=val_share,
    )
    writer_for(request)
    if predictions is not None:
        made = PredictionFolder(predictions)
    else:
        assert run is not None
        made = stage.predict_for_export(
            images or [],
            run,
            out,
            choice=HeadChoice(discovery, head, raw),
            overwrite=overwrite,
        )
    raise typer.Exit(3 if stage.export(request, made, overwrite=overwrite) else 0)


def _add_export_command(format_name: str, what: str, *, without: Sequence[str] = ()) -> None:
    """`rncdl export FORMAT`, without the options that mean nothing to the format."""

    def run_export(**arguments: Any) -> None:
        _export_detections(format_name, **arguments)

    _, *given = _parameters_of(_export_detections)
    fitting = [one for one in given if one.name not in without]
    command = _signed(run_export, like=_export_detections, parameters=fitting)
    export_app.command(format_name, help=f"{what}\n\n{inspect.getdoc(command)}")(command)


_add_export_command("coco", "COCO: a dataset and its results file.", without=["val_share"])
_add_export_command("yolo", "YOLO: an Ultralytics folder with data.yaml.")
_add_export_command("voc", "Pascal VOC: one XML file an image, boxes.", without=["shape"])
_add_export_command("label-studio", "Label Studio: tasks with predictions.", without=["val_share"])
_add_export_command("cvat", "CVAT: annotations for images 1.1.", without=["val_share"])
_add_export_command(
    "fiftyone", "FiftyOne: a folder, and a script that opens it.", without=["val_share"]
)
_add_export_command(
    "huggingface", "Hugging Face: a folder for datasets.load_dataset.", without=["val_share"]
)


@export_app.command("onnx")
def export_onnx(
    run: RunOption,
    out: Annotated[Path, typer.Option("--out", help="The file, e.g. detector.onnx.")],
    images: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="IMAGE|KEY=VALUE",
            help="Images (files, folders, globs) on which ONNX Runtime and PyTorch are compared, "
            "and settings to change.",
            show_default=False,
        ),
    ] = None,
    discovery: UsedDiscoveryOption = None,
    head: HeadOption = 0,
    min_score: Annotated[
        float | None,
        typer.Option(
            "--min-score", min=0, max=1, help="Least score; default: predict.min_score of the run."
        ),
    ] = None,
    raw: RawOption = False,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace --out where it exists.")
    ] = False,
) -> None:
    """ONNX: the whole detector as one file that runs without torch.

    An image of any size in; boxes, scores, labels and masks out; the classes' names in the
    metadata.
    """
    from rncdl.prediction.predictor import HeadChoice
    from rncdl.stages.export_onnx import export_onnx as run_export

    run_export(
        images or [],
        run,
        out=out,
        choice=HeadChoice(discovery, head, raw),
        min_score=min_score,
        overwrite=overwrite,
    )


@app.command()
@_shared
def compare(
    val: ValArgument,
    run: RunOption,
    images: ImagesOption = None,
    methods: Annotated[
        str, typer.Option("--methods", help="Names with commas; an unknown one lists them all.")
    ] = "all",
    seeds: SeedsOption = "0,1,2",
    oracle: Annotated[
        Path | None,
        typer.Option("--oracle", help="Training json with all classes, for fully-supervised."),
    ] = None,
    oracle_images: Annotated[
        Path | None, typer.Option("--oracle-images", help="Image folder of --oracle.")
    ] = None,
    ceiling_steps: Annotated[
        int | None,
        typer.Option(
            min=1, help="Steps of fully-supervised; default: a quarter of the run's own training."
        ),
    ] = None,
    unlabelled: PoolOption = None,
    unlabelled_images: PoolImagesOption = None,
    discovery: LikeOption = None,
    name: ResultsNameOption = "main",
    preset: PresetOption = None,
    overrides: OverridesArgument = None,
) -> None:
    """Compare systems on one detector and one bank, as the paper does: table, json, bar chart.

    Finished rows are kept: the same command goes on after a stop, and runs only what is new.
    """
    from rncdl.experiments.setup import TableRequest
    from rncdl.stages.compare import Oracle
    from rncdl.stages.compare import compare as run_comparison

    if oracle is None and (oracle_images is not None or ceiling_steps is not None):
        raise typer.BadParameter("--oracle-images and --ceiling-steps need --oracle")
    run_comparison(
        TableRequest(
            run=run,
            val=val,
            images=images,
            unlabelled=unlabelled or [],
            unlabelled_images=unlabelled_images,
            discovery=discovery,
            preset=preset,
            overrides=overrides or [],
        ),
        name=name,
        methods=methods,
        seeds=seeds,
        oracle=Oracle(oracle, oracle_images, ceiling_steps) if oracle else None,
    )


@app.command()
@_shared
def ablate(
    val: ValArgument,
    run: RunOption,
    images: ImagesOption = None,
    table: Annotated[
        str,
        typer.Option(
            "--table",
            help="alpha, classes, components, nms, proposals, memory, heads; several with commas.",
        ),
    ] = "all",
    seeds: SeedsOption = "0,1,2",
    clusters: Annotated[
        str | None,
        typer.Option(
            "--clusters",
            help="N of the tables classes and heads, with commas; "
            "default: 1/3, 1 and 5/3 of the run's, as in the paper.",
        ),
    ] = None,
    unlabelled: PoolOption = None,
    unlabelled_images: PoolImagesOption = None,
    discovery: LikeOption = None,
    name: ResultsNameOption = "main",
    preset: PresetOption = None,
    overrides: OverridesArgument = None,
) -> None:
    """Reproduce the paper's ablation tables row by row, beside the paper's own figures.

    Finished rows are kept: the same command goes on after a stop, and runs only what is new.
    Rows that diverge are reported as such.
    """
    from rncdl.experiments.setup import TableRequest
    from rncdl.stages.ablate import ablate as run_ablations

    run_ablations(
        TableRequest(
            run=run,
            val=val,
            images=images,
            unlabelled=unlabelled or [],
            unlabelled_images=unlabelled_images,
            discovery=discovery,
            preset=preset,
            overrides=overrides or [],
        ),
        name=name,
        tables=table,
        seeds=seeds,
        clusters=clusters,
    )


@app.command()
def report(
    run: RunOption,
    discovery: Annotated[
        str | None,
        typer.Option(
            "--discovery", help="The discovery to show; default: the newest finished one."
        ),
    ] = None,
    name: OldNameOption = None,
    out: Annotated[
        Path | None, typer.Option("--out", help="The html file; default: report.html in the run.")
    ] = None,
    val: Annotated[
        Path | None,
        typer.Option("--val", help="A labelled json: examples show its truth beside detections."),
    ] = None,
    val_images: Annotated[
        Path | None, typer.Option("--val-images", help="Image folder of --val.")
    ] = None,
    supervised: Annotated[
        Path | None,
        typer.Option("--supervised", help="With --val: a run trained with all labels, to compare."),
    ] = None,
    raw: RawOption = False,
) -> None:
    """Write one html page with all that a run has found: numbers, clusters, pictures."""
    from rncdl.run_folder import RunFolder
    from rncdl.stages.report import report as write_page
    from rncdl.stages.report_drawings import ComparedImages

    if val is None and (supervised is not None or val_images is not None):
        raise typer.BadParameter("--supervised and --val-images need --val")
    compared = None
    if val is not None:
        compared = ComparedImages(val, val_images, RunFolder(supervised) if supervised else None)
    write_page(run, name=_now_discovery(name) or discovery, out=out, compared=compared, raw=raw)


@app.command()
def rounds(run: RunOption) -> None:
    """Show what each round has brought: the figures of a run and of those it was started from.

    They are those of `rncdl evaluate`; known are the classes that the first round was trained on.
    What `rncdl promote --unnamed` has made classes counts as the clusters it comes from.
    """
    from rncdl.stages.rounds import show_rounds

    show_rounds(run)


@app.command("name")
def name_clusters(
    run: RunOption,
    discovery: Annotated[
        str | None,
        typer.Option(
            "--discovery", help="The discovery to name; default: the newest finished one."
        ),
    ] = None,
    head: Annotated[int, typer.Option("--head", min=0, help="Whose clusters.")] = 0,
    names_from: Annotated[
        Path | None,
        typer.Option(
            "--names-from",
            help="Another run whose decisions are suggested, like those of this run's other "
            "discoveries: for clusters that share its regions.",
        ),
    ] = None,
    port: Annotated[int, typer.Option("--port", min=0, max=65535, help="0: any free one.")] = 0,
    no_browser: Annotated[
        bool, typer.Option("--no-browser", help="Only print the address.")
    ] = False,
) -> None:
    """Open a local page to look at clusters: name, merge, ignore and correct them."""
    from rncdl.stages.name import PageAddress
    from rncdl.stages.name import name_clusters as serve

    address = PageAddress(port, browser=not no_browser)
    serve(run, discovery=discovery, head=head, names_from=names_from, address=address)


@app.command()
@_shared
def promote(
    run: RunOption,
    out: Annotated[Path, typer.Option("--out", help="The json to write; it must not exist.")],
    discovery: Annotated[
        str | None,
        typer.Option("--discovery", help="Whose clusters; default: the newest finished one's."),
    ] = None,
    head: Annotated[int, typer.Option("--head", min=0, help="Whose clusters.")] = 0,
    min_score: Annotated[
        float, typer.Option("--min-score", min=0, max=1, help="Label regions from this score on.")
    ] = 0.2,
    min_per_class: Annotated[
        int,
        typer.Option("--min-per-class", min=1, help="Leave out new classes with fewer regions."),
    ] = 5,
    only_placed: Annotated[
        bool,
        typer.Option(
            "--only-placed",
            help="Of the named classes, only regions that somebody has put there by hand.",
        ),
    ] = False,
    unnamed: Annotated[
        bool,
        typer.Option(
            "--unnamed",
            help="Clusters that nobody has named or ignored become classes too, called found_0012 "
            "(the next time found2_0012).",
        ),
    ] = False,
    best_share: Annotated[
        float,
        typer.Option(
            "--best-share",
            min=0,
            max=1,
            help="Of each new class, label only this share of the regions from --min-score on, the "
            "best by score; what people have put there by hand stays.",
        ),
    ] = 1.0,
) -> None:
    """Make labels of what people have named, beside the old ones, for `rncdl train`.

    Regions of named clusters (rncdl name) that score enough become annotations with box, mask,
    score and origin, in labelled and unlabelled images. The unlabelled images that are added get
    the known classes that are found in them too. With --unnamed nobody needs to have named any.
    """
    from rncdl.prediction.predictor import HeadChoice
    from rncdl.stages.promote import PromoteOptions
    from rncdl.stages.promote import promote as write_labels

    write_labels(
        run,
        out,
        choice=HeadChoice(discovery, head),
        options=PromoteOptions(
            min_score, min_per_class, only_placed, unnamed=unnamed, best_share=best_share
        ),
    )


@app.command("import")
def import_checkpoint(
    checkpoint: Annotated[
        Path, typer.Argument(help="A Detectron2 checkpoint of the authors' code.")
    ],
    run: RunOption,
    known: Annotated[
        str,
        typer.Option("--known", help="Known classes in output order: names, or a file of names."),
    ],
    preset: PresetOption = None,
    overrides: OverridesArgument = None,
) -> None:
    """Turn the authors' supervised or discovery checkpoint into a run folder."""
    from rncdl.stages.imports import import_checkpoint as run_import

    run_import(checkpoint, run, known=known, preset=preset, overrides=overrides or [])


@app.command()
@partial(_shared, default=one_gpu_or_two_processes)
def demo(
    out: Annotated[Path, typer.Option("--out", help="Folder for the demo's files.")] = Path("demo"),
    seed: Annotated[int, typer.Option(min=0, help="Seed of world and training.")] = 0,
) -> None:
    """Run the whole job on a drawn world, on any laptop, in minutes. Resumes if interrupted.

    Two processes share the work unless told otherwise, or one where there is one GPU.
    """
    from rncdl.stages.demo import DemoSize, run_demo

    run_demo(out, seed=seed, size=DemoSize())
