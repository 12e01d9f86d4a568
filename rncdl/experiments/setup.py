"""What all configurations of a table share: one run, its detector, its images, its banks."""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from rncdl.classes import ClassSplit
from rncdl.config import Settings, resolve_settings
from rncdl.data.records import AnnotationSet
from rncdl.data.viewed_images import Pool
from rncdl.detector.locating import RegionCache
from rncdl.detector.model import Detector
from rncdl.discovery.bank import Bank
from rncdl.discovery.filling import open_bank
from rncdl.discovery.object_bank import open_object_bank
from rncdl.discovery.phase import require_possible
from rncdl.errors import UserError
from rncdl.experiments.table_folder import TableFolder
from rncdl.inputs import load_dataset, load_pool, named_inputs
from rncdl.models import load_detector
from rncdl.origins import digest
from rncdl.run_folder import DiscoveryInputs, RunFolder
from rncdl.training.processes import Processes, join_processes


@dataclass(frozen=True)
class TableRequest:
    """Which run is measured, on what, and from what its rows start."""

    run: Path
    val: Path
    images: Path | None = None
    unlabelled: Sequence[Path] = ()
    unlabelled_images: Path | None = None
    discovery: str | None = None
    """whose settings and images are taken; None: the newest finished one, else the run's own"""
    preset: str | None = None
    overrides: Sequence[str] = field(default_factory=list)


@dataclass(frozen=True)
class Setup:
    """What all configurations of a table share, loaded once."""

    run: RunFolder
    folder: TableFolder
    settings: Settings
    split: ClassSplit
    detector: Detector
    pool: Pool
    truth: AnnotationSet
    processes: Processes
    cache: RegionCache = field(default_factory=RegionCache, repr=False)
    """what the detector has located in the images of `truth`"""
    found_regions: dict[int, Tensor] = field(default_factory=dict, repr=False)
    """Weng et al.'s regions of each pool image: the same for every seed"""
    _banks: dict[Path, Bank] = field(default_factory=dict, repr=False)

    def bank(self, name: str | None = None, settings: Settings | None = None) -> Bank:
        """The run's own bank, or, by name, one of the table's with other settings; made once."""
        folder = self.run.bank_dir if name is None else self.folder.bank_dir(name)
        if folder not in self._banks:
            self._banks[folder] = open_bank(
                folder,
                self.detector,
                self.pool,
                run=self.run,
                settings=settings or self.settings,
                processes=self.processes,
            )
        return self._banks[folder]

    def objects(self, settings: Settings) -> Bank | None:
        """What the teacher of these settings has seen, made once; None: they have no teacher."""
        folder = self.run.object_bank_dir
        if settings.discover.teacher == "none":
            return None
        if folder not in self._banks:
            self._banks[folder] = open_object_bank(
                folder,
                self.detector,
                self.pool,
                run=self.run,
                settings=settings,
                processes=self.processes,
            )
        return self._banks[folder]


@contextmanager
def open_setup(request: TableRequest, folder: TableFolder) -> Iterator[Setup]:
    """Settle and load what the rows start from; a table begun before goes on only from the same."""
    run = RunFolder(request.run)
    discovery = run.choose_discovery(request.discovery)
    base = folder.settings() or (
        run.settings() if discovery is None else run.discovery(discovery).settings()
    )
    settings = resolve_settings(request.preset, request.overrides, base=base)
    require_possible(settings)
    pool = _pool_inputs(request, run, folder, discovery)
    inputs: dict[str, Any] = {
        "val": str(request.val.resolve()),
        "val_digest": digest(_read_bytes(request.val)),
        "detector_digest": digest(_read_bytes(run.detector_file)),
        "pool": {**asdict(pool), "unlabelled": list(pool.unlabelled)},
    }
    folder.require_same(settings, inputs)
    with join_processes(settings.device) as processes:
        processes.from_main(lambda: folder.begin(settings, inputs))
        shown, split = processes.is_main, run.split()
        yield Setup(
            run=run,
            folder=folder,
            settings=settings,
            split=split,
            detector=load_detector(run, settings, split).to(processes.device).eval(),
            pool=load_pool(run, pool, settings=settings, shown=shown),
            truth=load_dataset(request.val, request.images, shown=shown),
            processes=processes,
        )


def _pool_inputs(
    request: TableRequest, run: RunFolder, folder: TableFolder, discovery: str | None
) -> DiscoveryInputs:
    """The pool's files: those named, else those the table or the discovery noted."""
    if request.unlabelled:
        return named_inputs(run, request.unlabelled, unlabelled_images=request.unlabelled_images)
    if folder.inputs_file.is_file():
        noted = json.loads(folder.inputs_file.read_text("utf-8"))["pool"]
        return DiscoveryInputs(**{**noted, "unlabelled": tuple(noted["unlabelled"])})
    found = None if discovery is None else run.discovery(discovery).inputs()
    if found is None:
        raise UserError(
            f"{run.path}: no finished discovery tells which images are unlabelled; "
            "name them with --unlabelled."
        )
    return found


def _read_bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise UserError(f"{path}: cannot read it ({error.strerror}).") from error
