"""`rncdl report`: everything a run has found, as one page to look at."""

import datetime
from collections.abc import Sequence
from pathlib import Path

from markupsafe import Markup

from rncdl.classes import cluster_name
from rncdl.config import Settings, dump_settings, resolve_settings
from rncdl.data.viewed_images import Pool
from rncdl.discovery.bank import Bank
from rncdl.discovery.filling import bank_origin
from rncdl.discovery.heads import DiscoveryHeads
from rncdl.discovery.prior import class_shares
from rncdl.errors import UserError
from rncdl.files import write_atomically
from rncdl.gallery.drawings import MIN_SHOWN_SCORE
from rncdl.gallery.findings import (
    AssignedRow,
    HeadlineRow,
    curves,
    headline_rows,
    read_assigned,
    read_classes,
    read_report,
    recall_table,
)
from rncdl.gallery.report import (
    Evaluated,
    Page,
    cluster_cards,
    encode_examples,
    exemplar_regions,
    render_page,
    shares_chart,
)
from rncdl.gallery.summaries import ClusterSummaries, summarise_clusters
from rncdl.gallery.thumbnails import cut_thumbnails, plan_thumbnails
from rncdl.prediction import classify_with_head
from rncdl.run_folder import RunFolder
from rncdl.stages.discover import load_pool
from rncdl.stages.examples import (
    Example,
    Showcase,
    ShownDetector,
    draw_examples,
    draw_showcase,
)
from rncdl.stages.info import versions
from rncdl.stages.loading import load_detector, load_heads
from rncdl.training.journal import read_journal
from rncdl.training.progress import say


def report(
    run_path: Path, *, name: str | None, out: Path | None, showcase: Showcase | None
) -> None:
    """Write the page of a run. `name`: a discovery; None takes the newest finished one."""
    run = RunFolder(run_path)
    if name is None:
        name = next(reversed(run.discovery_names()), None)
    if name is None:
        raise UserError(f"{run_path}: no finished discovery to report on; run `rncdl discover`.")
    write_report(run, name, out or run.report_file, showcase=showcase)


def write_report(
    run: RunFolder,
    name: str,
    out: Path,
    *,
    comparison_rows: Sequence[HeadlineRow] = (),
    showcase: Showcase | None = None,
) -> None:
    """The page of one discovery. `comparison_rows` stand in place of the evaluations' own."""
    folder = run.discovery(name)
    settings = resolve_settings(base=folder.settings(), overrides=["data.workers=0"])
    split = run.split()
    detector = load_detector(run, settings, split, discovery=name)
    heads = load_heads(run, detector, name).eval()
    evaluations = _evaluations(run, name)
    assigned = next((one.assigned for one in evaluations if one.assigned), ())
    notes: list[str] = []
    pool, bank = _open_pool(run, name, settings, notes)
    summaries, cards = None, []
    if pool is not None and bank is not None:
        plan = plan_thumbnails(heads.num_clusters[0])
        summaries = summarise_clusters(bank, heads, exemplars=plan.per_kind, shown=True)
        image_index, boxes_xyxy = exemplar_regions(summaries, bank)
        pictures = cut_thumbnails(pool.images, image_index, boxes_xyxy, side_px=plan.side_px)
        cards = cluster_cards(summaries, pictures, known=split.known, assigned=assigned)
    names = _output_names(split.known, heads.num_clusters[0], assigned)
    ours = ShownDetector("RNCDL", detector, classify_with_head(heads, 0, score="foreground"), names)
    drawn: list[Example] = []
    if showcase is not None:
        drawn = draw_showcase(ours, showcase, split.known, settings=settings)
    elif pool is not None:
        images = pool.images[pool.num_labelled :] or pool.images
        drawn = draw_examples(ours, images, split.known, settings=settings)
    page = Page(
        title=f"{run.path.resolve().name}: discovery {name}",
        facts=_facts(split.num_known, heads, pool, summaries),
        comparison=comparison_rows,
        evaluations=evaluations,
        examples=encode_examples([(one.drawing, one.alt, one.caption) for one in drawn]),
        examples_legend=_examples_legend(named=bool(assigned)),
        clusters=cards,
        notes=notes,
        curves=_curves(run, name),
        shares=_shares(summaries, settings) if summaries is not None else None,
        settings=dump_settings(folder.settings()),
        versions=versions(),
    )
    html = render_page(page).encode()
    write_atomically(out, html)
    say(f"Report: {out.resolve()} ({len(html) / 1e6:.1f} MB)")


def _open_pool(
    run: RunFolder, name: str, settings: Settings, notes: list[str]
) -> tuple[Pool | None, Bank | None]:
    """The images that were discovered from, and their regions; what is missing is noted."""
    inputs = run.discovery(name).inputs()
    if inputs is None:
        notes.append("This discovery did not note its images, so no clusters can be shown.")
        return None, None
    pool = load_pool(run, inputs, settings=settings, shown=False)
    if not Bank.exists(run.bank_dir):
        notes.append("This run has no bank (it discovered online), so no clusters are shown.")
        return pool, None
    bank = Bank(run.bank_dir)
    try:
        bank.require_origin(bank_origin(run.detector_file, pool, settings))
    except UserError:
        notes.append("The run's bank was made from other images, so no clusters are shown.")
        return pool, None
    return pool, bank


def _evaluations(run: RunFolder, name: str) -> list[Evaluated]:
    """Every evaluation of the discovery, after the detector as trained where it was measured."""
    trained = run.evaluations_of(None)
    found = []
    for val_name, folder in run.evaluations_of(name).items():
        numbers = read_report(folder.report_json)
        before = (
            headline_rows(read_report(trained[val_name].report_json)) if val_name in trained else []
        )
        found.append(
            Evaluated(
                title=f"{val_name} ({numbers['num_images']:,} images)",
                headline=[*before, *headline_rows(numbers)],
                recall=recall_table(numbers),
                classes=read_classes(folder.classes("head0_fixed_bbox")),
                assigned=read_assigned(folder.assignment("head0_fixed")),
            )
        )
    return found


def _output_names(
    known: Sequence[str], num_clusters: int, assigned: Sequence[AssignedRow]
) -> list[str]:
    """The name of each output: its class where evaluation found one, else the cluster's number."""
    clusters = [cluster_name(cluster) for cluster in range(num_clusters)]
    for row in assigned:
        if row.name is not None and not row.is_known:
            clusters[row.output - len(known)] = row.name
    return [*known, *clusters]


def _facts(
    num_known: int, heads: DiscoveryHeads, pool: Pool | None, summaries: ClusterSummaries | None
) -> dict[str, str]:
    facts = {
        "Known classes": f"{num_known:,}",
        "Clusters": ", ".join(f"{number:,}" for number in heads.num_clusters),
    }
    if pool is not None:
        facts["Labelled images"] = f"{pool.num_labelled:,}"
        facts["Unlabelled images"] = f"{len(pool) - pool.num_labelled:,}"
    if summaries is not None:
        facts["Regions"] = f"{int(summaries.known_sizes.sum() + summaries.sizes.sum()):,}"
        facts["Clusters in use"] = f"{int((summaries.sizes > 0).sum()):,}"
    return {**facts, "Written": datetime.date.today().isoformat()}


def _curves(run: RunFolder, name: str) -> dict[str, list[Markup]]:
    phases = {
        "Supervised phase": curves(read_journal(run.train_journal)),
        "Discovery": curves(read_journal(run.discovery(name).journal)),
    }
    return {phase: charts for phase, charts in phases.items() if charts}


def _shares(summaries: ClusterSummaries, settings: Settings) -> Markup:
    discover = settings.discover
    num_outputs = len(summaries.known_sizes) + len(summaries.sizes)
    batch = discover.batch_images * discover.regions_per_image
    prior = class_shares(
        num_outputs,
        discover.prior,
        mean=discover.prior_mean,
        sigma=discover.prior_sigma,
        num_regions=batch * (1 + discover.memory_batches),
    )
    return shares_chart(summaries, prior.numpy())


def _examples_legend(*, named: bool) -> str:
    naming = (
        "by the class that evaluation found it to stand for, where there is one"
        if named
        else "by its number"
    )
    return (
        "Known classes in quiet colours, novel ones in red tones. A cluster is named "
        f"{naming}. Scores are probabilities, in percent, times that of an object; of regions that "
        f"overlap only the best is drawn, and none below {100 * MIN_SHOWN_SCORE:.0f}."
    )
