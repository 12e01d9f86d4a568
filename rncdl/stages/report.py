"""`rncdl report`: everything a run has found, as one page to look at."""

import datetime
from collections.abc import Sequence
from pathlib import Path

from markupsafe import Markup

from rncdl.classes import ClassSplit, is_cluster_name
from rncdl.config import Settings, change, dump_settings
from rncdl.data.viewed_images import Pool
from rncdl.discovery.bank import Bank
from rncdl.discovery.estimation import Estimate
from rncdl.discovery.filling import require_origin
from rncdl.discovery.heads import DiscoveryHeads
from rncdl.discovery.prior import class_shares
from rncdl.errors import UserError
from rncdl.files import write_atomically
from rncdl.gallery.confusion import draw_confusion, order_confusion
from rncdl.gallery.drawings import MIN_SHOWN_SCORE
from rncdl.gallery.examples import Example
from rncdl.gallery.findings import (
    AssignedRow,
    ceiling_row,
    curves,
    decided_rows,
    headline_rows,
    read_assigned,
    read_classes,
    read_report,
    recall_table,
)
from rncdl.gallery.page import (
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
from rncdl.inputs import load_pool
from rncdl.models import load_detector, load_heads
from rncdl.prediction.classifier import (
    Classifier,
    discovery_classifier,
    for_drawings,
    output_names,
)
from rncdl.run_folder import RunFolder
from rncdl.stages.report_drawings import (
    ComparedImages,
    DrawnDetector,
    draw_comparison,
    draw_examples,
)
from rncdl.stages.rounds import rounds_of
from rncdl.training.journal import read_journal
from rncdl.training.processes import choose_device
from rncdl.training.progress import say
from rncdl.version import versions


def report(
    run_path: Path,
    *,
    name: str | None,
    out: Path | None,
    compared: ComparedImages | None,
    raw: bool = False,
) -> None:
    """Write the page of a run. `name`: a discovery; None takes the newest finished one.

    raw: clusters as they are; else named, merged and ignored as people have decided.
    """
    run = RunFolder(run_path)
    if name is None:
        name = run.choose_discovery(None)
    if name is None:
        raise UserError(f"{run_path}: no finished discovery to report on; run `rncdl discover`.")
    write_report(run, name, out or run.report_file, compared=compared, raw=raw)


def write_report(
    run: RunFolder,
    name: str,
    out: Path,
    *,
    compared: ComparedImages | None = None,
    raw: bool = False,
) -> None:
    """The page of one discovery."""
    folder = run.discovery(name)
    settings = change(folder.settings(), data={"workers": 0})
    split = run.split()
    device = choose_device(settings.device)
    detector = load_detector(run, settings, split, discovery=name).to(device).eval()
    heads = load_heads(run, detector, name)
    classifier = discovery_classifier(detector, heads, split.known, predict=settings.predict)
    num_clusters = heads.num_clusters[0]
    decisions = None if raw else folder.decisions(0)
    evaluations = _evaluations(
        run, name, num_clusters, supervised=compared.supervised if compared else None, raw=raw
    )
    assigned = next((one.assigned for one in evaluations if one.assigned), ())
    notes: list[str] = []
    pool, bank = _open_pool(run, name, settings, notes)
    summaries, cards = None, []
    if pool is not None and bank is not None:
        plan = plan_thumbnails(num_clusters)
        summaries = summarise_clusters(
            bank, heads, exemplars=plan.per_kind, known=classifier.known, shown=True
        )
        image_index, boxes_xyxy = exemplar_regions(summaries, bank)
        pictures = cut_thumbnails(pool.images, image_index, boxes_xyxy, side_px=plan.side_px)
        cards = cluster_cards(
            summaries, pictures, known=split.known, assigned=assigned, decisions=decisions
        )
    decided = classifier.decided(decisions)
    named = for_drawings(decided).renamed(assigned_names(decided, assigned))
    ours = DrawnDetector("RNCDL", detector, named)
    drawn: list[Example] = []
    if compared is not None:
        drawn = draw_comparison(ours, compared, split.known, settings=settings)
    elif pool is not None:
        images = pool.images[pool.num_labelled :] or pool.images
        drawn = draw_examples(ours, images, split.known, settings=settings)
    page = Page(
        title=f"Discovery “{name}” of {run.path.resolve().name}",
        lead=_lead(split, num_clusters, pool),
        facts=_facts(split, heads, pool, summaries),
        evaluations=evaluations,
        rounds=rounds_of(run),
        examples=encode_examples(drawn),
        examples_legend=_examples_legend(named=bool(assigned)),
        clusters=cards,
        notes=notes,
        curves=_curves(run, name),
        estimate=Estimate.load(run.estimate_file) if run.estimate_file.is_file() else None,
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
        require_origin(bank, run, pool, settings)
    except UserError:
        notes.append("The run's bank was made from other images, so no clusters are shown.")
        return pool, None
    return pool, bank


def _evaluations(
    run: RunFolder, name: str, num_clusters: int, *, supervised: RunFolder | None, raw: bool
) -> list[Evaluated]:
    """Every evaluation of the discovery, between the detector as trained and the ceiling.

    Both are there only where they were measured on the same validation set; so are, unless `raw`,
    the figures with clusters as people have named them.
    """
    known = run.split().known
    trained = run.evaluations_of(None)
    ceiling = supervised.evaluations_of(None) if supervised is not None else {}
    as_found = run.evaluations_of(name)
    decided = {} if raw else run.evaluations_of(name, decided=True)
    found = []
    for val_name, folder in {**decided, **as_found}.items():
        numbers = read_report(folder.report_json)
        headline = headline_rows(numbers) if val_name in as_found else []
        if val_name in trained:
            headline = [*headline_rows(read_report(trained[val_name].report_json)), *headline]
        if val_name in decided:
            headline += decided_rows(read_report(decided[val_name].report_json))
        if val_name in ceiling:
            headline.append(ceiling_row(read_report(ceiling[val_name].report_json)))
        classes = read_classes(folder.classes("head0_fixed_bbox"))
        assigned = []
        if val_name in as_found:
            assigned = read_assigned(folder.assignment("head0_fixed"), folder.confusion("head0"))
        confusion = order_confusion(assigned, classes, output_names(known, num_clusters))
        found.append(
            Evaluated(
                title=f"{val_name} ({numbers['num_images']:,} images)",
                headline=headline,
                recall=recall_table(numbers),
                classes=classes,
                assigned=assigned,
                confusion=None if confusion is None else draw_confusion(confusion),
            )
        )
    return found


def assigned_names(classifier: Classifier, assigned: Sequence[AssignedRow]) -> list[str]:
    """The name of each class: a cluster's own, or its number, or its class if that stands out.

    assigned: of all outputs before anybody has decided; empty where nothing was evaluated.
    """
    names = list(classifier.names)
    for label, clusters in enumerate(classifier.clusters):
        if label >= classifier.num_known and assigned and is_cluster_name(names[label]):
            row = assigned[classifier.num_known + clusters[0]]
            if row.name is not None and row.stands_out:
                names[label] = row.name
    return names


def _lead(split: ClassSplit, num_clusters: int, pool: Pool | None) -> str:
    images = f"{len(pool):,} images" if pool is not None else "images"
    found = f" and {len(split.found):,} that it had found before" if split.found else ""
    num_labelled = split.num_known - len(split.found)
    return (
        f"A detector was trained on {num_labelled:,} labelled classes{found}. It then sorted the "
        f"regions of {images}, without labels, into these classes and {num_clusters:,} clusters of "
        "whatever else there is. A cluster is good when it holds one class that nobody had "
        "labelled."
    )


def _facts(
    split: ClassSplit, heads: DiscoveryHeads, pool: Pool | None, summaries: ClusterSummaries | None
) -> dict[str, str]:
    facts = {
        "Known classes": f"{split.num_known - len(split.found):,}",
        **({"Classes found before": f"{len(split.found):,}"} if split.found else {}),
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
        sigma=discover.prior_sigma,
        num_regions=batch * (1 + discover.memory_batches),
    )
    return shares_chart(summaries, prior.numpy())


def _examples_legend(*, named: bool) -> str:
    naming = (
        "as people have named it; else by the class that evaluation gave it, if it took more "
        "annotated boxes of that class than of any other, and by its number if not"
        if named
        else "as people have named it, and by its number where they have not"
    )
    return (
        "Known classes in quiet colours, novel ones in red tones. A cluster is named "
        f"{naming}. Scores are in percent: the output's probability, times how likely the region "
        "is an object. Of regions that overlap only the best is drawn, and none below "
        f"{100 * MIN_SHOWN_SCORE:.0f}."
    )
