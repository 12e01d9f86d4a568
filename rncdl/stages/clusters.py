"""`rncdl.clusters`: what a discovery has found, as records."""

from pathlib import Path

from rncdl.gallery.cluster_records import Cluster, cluster_records
from rncdl.gallery.summaries import summarise_clusters
from rncdl.run_folder import RunFolder
from rncdl.stages.opening import open_discovery, require_discovery


def list_clusters(
    run_path: Path, *, discovery: str | None, head: int, num_examples: int
) -> list[Cluster]:
    """The clusters of one head; of each, so many of its most typical regions."""
    run = RunFolder(run_path)
    opened = open_discovery(run, require_discovery(run, discovery), head)
    summaries = summarise_clusters(
        opened.bank,
        opened.heads,
        head=head,
        exemplars={"typical": num_examples},
        known=opened.classifier.known,
        shown=True,
    )
    return cluster_records(
        summaries,
        opened.bank,
        opened.pool.images,
        known=run.split().known,
        decisions=opened.folder.decisions(head),
    )
