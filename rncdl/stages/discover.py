"""`rncdl discover`: the second phase."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from rncdl.config import Settings, change, resolve_settings
from rncdl.data.viewed_images import Pool
from rncdl.discovery.bank import Bank
from rncdl.discovery.coverage import FEW, covered_share, describe_coverage
from rncdl.discovery.filling import open_bank, require_origin
from rncdl.discovery.phase import (
    needs_online,
    require_possible,
    starting_detector,
    train_from_bank,
    train_online,
)
from rncdl.errors import UserError
from rncdl.inputs import load_pool, named_inputs
from rncdl.run_folder import DiscoveryFolder, DiscoveryInputs, RunFolder
from rncdl.stages.curves import curves_drawn
from rncdl.stages.estimate_classes import estimate_from, look_at_objects
from rncdl.stages.resuming import FIXED_IN_DISCOVERY, take_up_changes
from rncdl.training.processes import Processes, join_processes
from rncdl.training.progress import say, warn


def discover(
    run_path: Path,
    named: DiscoveryInputs | None,
    *,
    name: str = "main",
    preset: str | None = None,
    resume: bool = False,
    overrides: Sequence[str] = (),
) -> None:
    """Train the known and novel heads on the pool of labelled and unlabelled images.

    `named`: its files; None, to resume: those it was begun with.
    """
    run = RunFolder(run_path)
    folder = run.discovery(name)
    _require_free(folder, resume=resume)
    base = folder.settings() if resume else run.settings()
    settings = resolve_settings(preset, overrides, base=base)
    require_possible(settings)
    online = needs_online(settings.discover)
    inputs = _settle_inputs(run, folder, named, resume=resume)
    with join_processes(settings.device) as processes:
        pool = load_pool(run, inputs, settings=settings, shown=processes.is_main)
        if resume:
            take_up_changes(
                folder,
                base,
                settings,
                fixed=FIXED_IN_DISCOVERY,
                instead="begin another one with --discovery",
                processes=processes,
            )
        else:
            if not online:
                processes.from_main(partial(_require_usable_bank, run, pool, settings))
            processes.from_main(partial(folder.begin, settings, inputs))
        detector = starting_detector(run, settings, pool)
        with curves_drawn(run, processes, name):
            if online:
                train_online(folder, detector, pool, settings=settings, processes=processes)
            else:
                bank = open_bank(
                    run.bank_dir, detector, pool, run=run, settings=settings, processes=processes
                )
                if processes.is_main:
                    _say_coverage(bank, pool)
                objects = None
                if settings.discover.teacher != "none":
                    objects = look_at_objects(
                        run, detector, pool, settings=settings, processes=processes
                    )
                    settings = _settle_heads(
                        run, folder, objects, pool, settings=settings, processes=processes
                    )
                train_from_bank(
                    folder,
                    detector,
                    pool,
                    bank,
                    settings=settings,
                    processes=processes,
                    objects=objects,
                )
        if processes.is_main:
            say(f"Heads: {folder.heads_file}")


def _settle_heads(
    run: RunFolder,
    folder: DiscoveryFolder,
    objects: Bank,
    pool: Pool,
    *,
    settings: Settings,
    processes: Processes,
) -> Settings:
    """The settings with an estimated number of clusters in place of `auto`, and noted."""
    if settings.discover.heads:
        return settings
    found = processes.from_main(lambda: estimate_from(objects, pool, settings))
    settled = change(settings, discover={"heads": (found.with_room,)})
    processes.from_main(partial(folder.save_settings, settled))
    if processes.is_main:
        found.save(run.estimate_file)
        say(f"{found.line()} Clusters: {found.with_room}.")
    return settled


def _settle_inputs(
    run: RunFolder, folder: DiscoveryFolder, named: DiscoveryInputs | None, *, resume: bool
) -> DiscoveryInputs:
    """The files that were named, else those that were noted; both must be the same."""
    noted = folder.inputs() if resume else None
    if noted is not None and named is not None and named != noted:
        raise UserError(
            f"{folder.path}: this discovery was begun with other images ({folder.inputs_file}); "
            "resume it without naming any, or choose another --discovery."
        )
    return named or noted or named_inputs(run, [])


def _require_free(folder: DiscoveryFolder, *, resume: bool) -> None:
    if folder.heads_file.is_file():
        raise UserError(
            f"{folder.path}: this discovery is finished; choose another name (--discovery)."
        )
    if folder.exists and not resume:
        raise UserError(
            f"{folder.path}: already begun; continue it with --resume or choose another name "
            "(--discovery)."
        )


def _say_coverage(bank: Bank, pool: Pool) -> None:
    """Say how many known objects the regions fit, and warn where they are few."""
    share = covered_share(bank, pool)
    if share is None:
        return
    if share >= FEW:
        say(f"{describe_coverage(share)}.")
    else:
        warn(
            f"only {describe_coverage(share)}: proposals miss the objects, and new ones surely "
            "too. Train the detector longer (train.steps) or on larger images (--size), or take "
            "more discover.regions_per_image."
        )


def _require_usable_bank(run: RunFolder, pool: Pool, settings: Settings) -> None:
    """Where there is a bank already, refuse one of another origin before the discovery begins."""
    if Bank.exists(run.bank_dir):
        require_origin(Bank(run.bank_dir), run, pool, settings)
