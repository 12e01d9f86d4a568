"""`rncdl run`: check, plan, train, discover, report; the same command goes on after a stop."""

import json
import shlex
from collections.abc import Sequence, Set
from dataclasses import asdict
from functools import partial
from pathlib import Path

from rncdl.config import Settings, change, resolve_settings, setting_changes
from rncdl.data.annotations import load_annotations, load_images_or_annotations, without_labels
from rncdl.data.problems import BAD_IMAGES
from rncdl.data.records import ImageRecord
from rncdl.data.viewed_images import Pool
from rncdl.detector.pretrained import find_start, settle_start
from rncdl.discovery.phase import require_possible
from rncdl.errors import UserError, did_you_mean
from rncdl.files import write_atomically
from rncdl.inputs import known_classes, named_inputs, require_annotations
from rncdl.models import new_detector
from rncdl.planning.expectation import Expectation, expect
from rncdl.planning.facts import DataFacts, data_facts, machine_facts
from rncdl.planning.plan import Plan, cut_batches, default_size, make_plan, number_of_clusters
from rncdl.planning.request import RunRequest
from rncdl.planning.sizes import SIZES
from rncdl.planning.trial import try_out
from rncdl.planning.words import next_commands, plan_table, warnings_of
from rncdl.run_folder import RunFolder
from rncdl.stages.discover import discover
from rncdl.stages.evaluate import evaluate
from rncdl.stages.prepare import show_problems
from rncdl.stages.report import report
from rncdl.stages.train import begin_training, resume_training
from rncdl.training.processes import Processes, join_processes
from rncdl.training.progress import console, say, warn

DISCOVERY = "main"


def run_everything(request: RunRequest, out: Path) -> None:
    """From a labelled file and unlabelled images to the report."""
    file = next((path for path in (out, *out.parents) if path.is_file()), None)
    if file is not None:
        raise UserError(f"--out {out}: {file} is a file; name a folder for the run.")
    run = RunFolder(out)
    settings = resolve_settings(overrides=request.overrides)
    with join_processes(settings.device) as processes:
        announce = _announce if processes.is_main else lambda *_: None
        if not processes.from_main(lambda: run.exists):
            announce(1, "check the data")
            data, pool = processes.from_main(partial(_check, request))
            announce(2, "plan, after a trial of each phase")
            planned = partial(_plan, request, run, data, pool, processes)
            settings = processes.from_main(planned)
            changed: Sequence[str] = ()
        else:
            changed = processes.from_main(partial(_go_on, request, run))
            announce(2, f"{run.path} has its plan: go on with it ({run.plan_file.name})")
        announce(3, "train a detector on the known classes")
        _train(request, run, settings, changed, processes)
        announce(4, "discover: extract region features once, then sort them into clusters")
        _discover(request, run, changed, processes)
        if request.val is not None:
            announce(5, f"measure on {request.val}")
            _measure(request, run, processes)
        if processes.is_main:
            announce(6, "write the report")
            report(run.path, name=DISCOVERY, out=None, compared=None)
            _show_what_is_next(request, run)


def _announce(number: int, what: str) -> None:
    console.print(f"[bold]{number}/6[/] ", end="")
    say(what)


def _check(request: RunRequest) -> tuple[DataFacts, Pool]:
    """The images to learn from and facts about them; what is wrong with them is shown."""
    bad_places = _bad_places(request.labelled, request.images)
    annotations = load_annotations(request.labelled, request.images).annotations
    split = known_classes(request.labelled, annotations, request.known)
    _require_some(request.labelled, annotations.images, bad_places)
    unlabelled: list[ImageRecord] = []
    for path in request.unlabelled:
        bad = _bad_places(path, request.unlabelled_images)
        loaded = load_images_or_annotations(path, request.unlabelled_images, on_bad_image="skip")
        images = without_labels(loaded.annotations).images
        _require_some(path, images, bad)
        bad_places |= bad
        unlabelled.extend(images)
    trained_on = [image.path for image in (*annotations.images, *unlabelled)]
    facts = data_facts(
        split.keep_known(annotations),
        unlabelled,
        num_val=_check_val(request, trained_on),
        num_bad_images=len(bad_places),
    )
    return facts, Pool(split.keep_known(annotations), unlabelled)


def _check_val(request: RunRequest, trained_on: Sequence[Path]) -> int:
    """How many images there are to measure on."""
    if request.val is None:
        return 0
    show_problems(request.val, request.val_images, trained_on=trained_on)
    annotations = load_annotations(request.val, request.val_images).annotations
    require_annotations(request.val, annotations)
    return len(annotations.images)


def _bad_places(path: Path, images: Path | None) -> set[str]:
    """Images, and annotations, that would stop a run."""
    problems = show_problems(path, images)
    return {problem.where for problem in problems if problem.kind in BAD_IMAGES}


def _require_some(path: Path, images: Sequence[ImageRecord], bad_places: Set[str]) -> None:
    if all(str(image.path) in bad_places for image in images):
        raise UserError(
            f"{path}: none of its images can be used. Are they where the file says, below the "
            "file's own folder or the folder that --images names?"
        )


def _plan(
    request: RunRequest, run: RunFolder, data: DataFacts, pool: Pool, processes: Processes
) -> Settings:
    """The settings of the run, shown and noted with their reasons and what they will cost."""
    machine = machine_facts(run.path, processes.device, num_processes=processes.count)
    name = default_size(machine).name if request.size is None else request.size
    if name not in SIZES:
        hint = did_you_mean(name, SIZES)
        sizes = ", ".join(f"{one.name} ({one.means})" for one in SIZES.values())
        raise UserError(f"--size {name}: no such size.{hint} Sizes: {sizes}.")
    plan = make_plan(data, machine, SIZES[name], request.overrides)
    require_possible(plan.settings)
    start = find_start(plan.settings.detector)
    detector = settle_start(plan.settings.detector, start)
    tried = plan.settings.model_copy(update={"detector": detector})
    if not tried.discover.heads:  # auto: known only once there is a bank
        number, _ = number_of_clusters(data, SIZES[name])
        tried = change(tried, discover={"heads": (number,)})
    # Also refuses a detector that cannot be built, before anything is tried.
    num_weights = sum(weight.numel() for weight in new_detector(tried, pool.labels).parameters())
    trial = try_out(tried, pool, processes, memory_bytes=machine.memory_bytes)
    plan = cut_batches(plan, trial.accumulate)
    expected = expect(plan.settings, data, machine, trial, num_weights=num_weights)
    console.print(plan_table(plan, data, machine, weights=start.line(), expected=expected))
    for warning in warnings_of(plan, data, machine, expected):
        warn(warning)
    _note(request, run, plan, expected)
    return plan.settings


def _note(request: RunRequest, run: RunFolder, plan: Plan, expected: Expectation) -> None:
    noted = {
        "asked": request.noted(),
        "size": plan.size,
        "choices": [asdict(choice) for choice in plan.choices],
        "expected": {**asdict(expected), "total_s": expected.total_s},
    }
    write_atomically(run.plan_file, json.dumps(noted, indent=2, default=str).encode())


def _go_on(request: RunRequest, run: RunFolder) -> list[str]:
    """The settings to go on with, where the run was begun with the same files."""
    if not run.plan_file.is_file():
        raise UserError(
            f"{run.path} holds a run that `rncdl run` did not begin: go on with `rncdl train "
            f"--run {run.path} --resume`, or choose another --out."
        )
    asked = json.loads(run.plan_file.read_text("utf-8"))["asked"]
    request.require_same_words(asked, run.path)
    still_open = () if run.discovery(DISCOVERY).exists else request.unlabelled
    for path in request.changed_files(asked):
        if path not in [one.resolve() for one in still_open]:
            raise UserError(
                f"{path} has changed since {run.path} was begun with it: put it back as it was, or "
                "choose another --out."
            )
        warn(f"{path} has changed since the plan was made; discovery takes what is there now.")
    return request.changed_settings(asked)


def _train(
    request: RunRequest,
    run: RunFolder,
    settings: Settings,
    changed: Sequence[str],
    processes: Processes,
) -> None:
    if processes.from_main(lambda: run.exists):
        resume_training(run.path, changed)
    else:
        inputs = request.training_inputs()
        begin_training(run.path, inputs, settings=settings, known=request.known)


def _discover(
    request: RunRequest, run: RunFolder, changed: Sequence[str], processes: Processes
) -> None:
    folder = run.discovery(DISCOVERY)
    is_done, has_begun = processes.from_main(lambda: (folder.heads_file.is_file(), folder.exists))
    if not is_done:
        named = named_inputs(run, request.unlabelled, unlabelled_images=request.unlabelled_images)
        discover(run.path, named, resume=has_begun, overrides=changed)
    elif processes.is_main:
        say(f"{folder.heads_file}: already trained to the end.")
        _warn_of_late_settings(run, changed)


def _warn_of_late_settings(run: RunFolder, changed: Sequence[str]) -> None:
    before = run.discovery(DISCOVERY).settings()
    late = setting_changes(before, resolve_settings(base=before, overrides=changed))
    if late:
        warn(
            f"too late for {', '.join(late)}: all is trained. For another discovery with the same "
            f"detector: rncdl discover --run {shlex.quote(str(run.path))} --discovery NAME ..."
        )


def _measure(request: RunRequest, run: RunFolder, processes: Processes) -> None:
    assert request.val is not None
    done = run.evaluation(request.val.stem, DISCOVERY).report_json
    if not processes.from_main(done.is_file):
        evaluate(
            run.path,
            request.val,
            images=request.val_images,
            name=DISCOVERY,
            train_labels=None,
            overrides=(),
        )


def _show_what_is_next(request: RunRequest, run: RunFolder) -> None:
    say("Open the report in a browser. Then, for example:")
    pool = [shlex.quote(str(path)) for path in request.unlabelled]
    for line in next_commands(shlex.quote(str(run.path)), pool):
        say(f"  {line}")
