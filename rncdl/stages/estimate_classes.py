"""`rncdl estimate-classes`: how many new classes the pool holds."""

from collections.abc import Sequence
from pathlib import Path

from rncdl.config import Settings, change, resolve_settings
from rncdl.data.viewed_images import Pool
from rncdl.detector.model import Detector
from rncdl.discovery.bank import Bank
from rncdl.discovery.estimation import Estimate, estimate_clusters
from rncdl.discovery.lessons import open_objects, read_objects
from rncdl.discovery.object_bank import open_object_bank
from rncdl.discovery.phase import starting_detector
from rncdl.evaluation.ap_tables import screen_table
from rncdl.inputs import load_pool
from rncdl.run_folder import DiscoveryInputs, RunFolder
from rncdl.training.processes import Processes, join_processes
from rncdl.training.progress import console, say


def estimate_classes(
    run_path: Path,
    inputs: DiscoveryInputs,
    *,
    preset: str | None = None,
    overrides: Sequence[str] = (),
) -> None:
    """Let a teacher look at the pool's objects, and say how many new classes they seem to be of."""
    run = RunFolder(run_path)
    settings = resolve_settings(preset, overrides, base=run.settings())
    if settings.discover.teacher == "none":
        settings = change(settings, discover={"teacher": "auto"})
    with join_processes(settings.device) as processes:
        pool = load_pool(run, inputs, settings=settings, shown=processes.is_main)
        detector = starting_detector(run, settings, pool)
        objects = look_at_objects(run, detector, pool, settings=settings, processes=processes)
        found = processes.from_main(lambda: estimate_from(objects, pool, settings))
        if processes.is_main:
            _show(found)
            found.save(run.estimate_file)
            say(f"{found.line()} Curve: {run.estimate_file}")


def look_at_objects(
    run: RunFolder, detector: Detector, pool: Pool, *, settings: Settings, processes: Processes
) -> Bank:
    """What the settings' teacher has seen of the pool, in the run's folder."""
    return open_object_bank(
        run.object_bank_dir, detector, pool, run=run, settings=settings, processes=processes
    )


def estimate_from(objects: Bank, pool: Pool, settings: Settings) -> Estimate:
    """The number of new classes among the objects that nobody has annotated."""
    seen = read_objects(objects)
    return estimate_clusters(
        seen.features[open_objects(seen, pool, settings)],
        seen.labelled,
        seen.labels,
        seed=settings.seed,
    )


def _show(found: Estimate) -> None:
    rows = [
        [str(point.num_clusters), f"{point.agreement:.3f} ± {point.spread:.3f}"]
        for point in found.curve
    ]
    title = "How well known classes are told apart, by the number of new ones"
    console.print(screen_table(title, ["new classes", "F1 of known"], rows))
