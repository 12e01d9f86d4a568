"""What was decided about an earlier discovery, as suggestions for this one.

Nothing here is applied: people accept suggestions on the page.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from rncdl.classes import cluster_name, is_cluster_name
from rncdl.naming.decisions import NOT_AN_OBJECT, Decisions
from rncdl.naming.edits import RegionKey
from rncdl.naming.membership import Membership
from rncdl.naming.shared_regions import Matches, match_regions

_MIN_SHARE_OF_FOUND = 0.5
"""Of a cluster's regions that were there before, the share that must have been of one class."""
_MIN_SHARE_OF_ALL = 0.2
_UNDECIDED, _IGNORED = 0, 1


@dataclass(frozen=True)
class Earlier:
    """What people decided about the clusters of another discovery or head."""

    title: str
    membership: Membership
    decisions: Decisions


@dataclass(frozen=True)
class Suggestion:
    """What a cluster may be, by the regions that it shares with an earlier class."""

    cluster: int
    name: str | None
    """None: what people ignored"""
    shared: int
    """regions that are now in the cluster and were in the class"""
    size: int
    """regions of the cluster"""
    class_size: int
    """regions of the class, as it was"""
    title: str
    """of the earlier discovery"""


@dataclass(frozen=True)
class CarriedOver:
    """All that earlier decisions suggest."""

    clusters: dict[int, Suggestion] = field(default_factory=dict)
    moved: dict[RegionKey, str | None] = field(default_factory=dict)
    """regions that people had put somewhere by hand -> that class, None: they are no objects"""


def carry_over(now: Membership, earlier: Iterable[Earlier], *, shown: bool = True) -> CarriedOver:
    """Suggestions from all that was decided, the newest first.

    Where two speak of a cluster, the one with more of its regions is heard. A merge that nobody
    named is suggested where at least two clusters are to be one class.
    """
    carried = CarriedOver()
    for one in earlier:
        matches = match_regions(now, one.membership, shown=shown)
        for suggestion in _suggest(now, one, matches):
            other = carried.clusters.get(suggestion.cluster)
            if other is None or other.shared < suggestion.shared:
                carried.clusters[suggestion.cluster] = suggestion
        for key, name in _find_moved(now, one, matches).items():
            carried.moved.setdefault(key, name)
    return carried


def _suggest(now: Membership, earlier: Earlier, matches: Matches) -> list[Suggestion]:
    names = sorted(set(earlier.decisions.names.values()))
    fates = _fates(earlier, names)
    num_fates = len(names) + 2
    sizes = np.bincount(fates, minlength=num_fates)
    in_cluster = (now.outputs >= now.num_known) & (now.outputs < now.no_object)
    is_there = (matches.rows >= 0) & in_cluster
    clusters = now.outputs[is_there].astype(np.int64) - now.num_known
    pairs = clusters * num_fates + fates[matches.rows[is_there]]
    shared = np.bincount(pairs, minlength=now.num_clusters * num_fates)
    shared = shared.reshape(now.num_clusters, num_fates)
    found = []
    for cluster in range(now.num_clusters):
        best = int(shared[cluster, _IGNORED:].argmax()) + _IGNORED
        number, size = int(shared[cluster, best]), len(now.rows_of_cluster(cluster))
        of_found = _MIN_SHARE_OF_FOUND * shared[cluster].sum()
        if number and number >= of_found and number >= _MIN_SHARE_OF_ALL * size:
            name = None if best == _IGNORED else names[best - 2]
            found.append(Suggestion(cluster, name, number, size, int(sizes[best]), earlier.title))
    return _rename_unnamed(found)


def _fates(earlier: Earlier, names: Sequence[str]) -> np.ndarray:
    """(R,) what became of each earlier region: undecided, ignored, or 2 + its class's place."""
    membership, decisions = earlier.membership, earlier.decisions
    place = {name: 2 + i for i, name in enumerate(names)}

    def fate_of(cluster: int) -> int:
        if cluster == NOT_AN_OBJECT or cluster in decisions.ignored:
            return _IGNORED
        name = decisions.names.get(cluster)
        return _UNDECIDED if name is None else place[name]

    of_clusters = [fate_of(cluster) for cluster in range(membership.num_clusters)]
    of_known = [_UNDECIDED] * membership.num_known
    of_outputs = np.array([*of_known, *of_clusters, _UNDECIDED], dtype=np.int64)
    fates = of_outputs[membership.outputs]
    for key, cluster in decisions.moved.items():
        row = membership.row_of(key)
        if row is not None:
            fates[row] = fate_of(cluster)
    return fates


def _rename_unnamed(suggestions: Sequence[Suggestion]) -> list[Suggestion]:
    """Classes that only had a cluster's number take the number of one of their new clusters."""
    together: dict[str, list[int]] = defaultdict(list)
    for one in suggestions:
        if one.name is not None and is_cluster_name(one.name):
            together[one.name].append(one.cluster)
    renamed = []
    for one in suggestions:
        clusters = together.get(one.name or "")
        if clusters is None:
            renamed.append(one)
        elif len(clusters) > 1:
            renamed.append(replace(one, name=cluster_name(min(clusters))))
    return renamed


def _find_moved(now: Membership, earlier: Earlier, matches: Matches) -> dict[RegionKey, str | None]:
    """What became of the regions that people had moved; those of unnamed classes are left out."""
    rows_before = {key: earlier.membership.row_of(key) for key in earlier.decisions.moved}
    best = _most_alike(matches, [row for row in rows_before.values() if row is not None])
    found: dict[RegionKey, str | None] = {}
    for key, cluster in earlier.decisions.moved.items():
        row = best.get(rows_before[key])
        name = earlier.decisions.names.get(cluster)
        is_named = name is not None and not is_cluster_name(name)
        if row is not None and (cluster == NOT_AN_OBJECT or is_named):
            found[now.key_of(row)] = name
    return found


def _most_alike(matches: Matches, rows_before: Sequence[int]) -> dict[int | None, int]:
    """Of the earlier rows that are there again, the row that is most like each."""
    rows = np.flatnonzero(np.isin(matches.rows, rows_before))
    rows = rows[np.argsort(matches.iou[rows], kind="stable")]
    return dict(zip(matches.rows[rows].tolist(), rows.tolist(), strict=True))
