"""What people can decide: each function writes one decision into the store."""

from collections.abc import Sequence

from rncdl.classes import cluster_name, is_cluster_name, is_found_name
from rncdl.naming.board import Board, UnknownPlaceError, decided
from rncdl.naming.decisions import NOT_AN_OBJECT
from rncdl.naming.edits import ClusterState, Edit, RegionKey

MAX_NAME_LENGTH = 100
MAX_MOVED = 5000
"""Regions that are moved at once; a decision shall stay a short transaction."""


class BadDecisionError(Exception):
    """A decision that makes no sense, with what to do instead."""


class NameTakenError(Exception):
    """A class has this name already: to give it again is to merge, which has to be said."""

    def __init__(self, name: str) -> None:
        super().__init__(f"There is already a class “{name}”.")
        self.name = name


def clean_name(text: str) -> str:
    """The name without surrounding and doubled space."""
    name = " ".join(text.split())
    if not name or len(name) > MAX_NAME_LENGTH or not name.isprintable():
        raise BadDecisionError(f"A name has 1 to {MAX_NAME_LENGTH} characters that can be printed.")
    if is_cluster_name(name):
        raise BadDecisionError(f"{name} is the number of a cluster; choose a name of your own.")
    return name


def _name_for(board: Board, text: str) -> str:
    """The cleaned name: one of somebody's own, or that of a class that is there."""
    name = clean_name(text)
    if is_found_name(name) and board.spelling(name) is None:
        raise BadDecisionError(
            f"{name} is what clusters without a name are called as classes; choose a name of your "
            "own."
        )
    return name


def name_clusters(
    board: Board, clusters: Sequence[int], text: str, *, merge: bool, seen: int
) -> None:
    """Make one class of some clusters, and of all that their classes are made of, and name it.

    merge: whether they may join a class that has the name already; `NameTakenError` if not.
    """
    name = _name_for(board, text)
    chosen = {c for one in _chosen(board, clusters) for c in _class_of(board, one)}
    existing = board.spelling(name)
    if existing is not None and {board.state(c).name for c in chosen} != {existing}:
        is_whole = existing not in board.known and chosen.issuperset(board.clusters_named(existing))
        if not (merge or is_whole):
            raise NameTakenError(existing)
    if existing is not None and (merge or existing in board.known):
        name = existing
    said = f"Named {_clusters(board, clusters)} “{name}”"
    _rename(board, sorted(chosen), name, said=said, seen=seen)


def merge_clusters(board: Board, source: int, into: int, *, seen: int) -> None:
    """Make one class of two: a known class's name stays, then that of `into`, then the source's.

    Where neither has a name, the number of `into` serves until somebody gives one.
    """
    board.require_cluster(source)
    if into in (NOT_AN_OBJECT, board.taken_for_nothing):
        raise BadDecisionError("Ignore the cluster if it shows no objects.")
    if into < 0:
        board.members(into, start=0, count=0)
    else:
        board.require_cluster(into)
    source_name = board.state(source).name
    if into == source or (source_name is not None and source_name == board.label(into)):
        raise BadDecisionError("These are one class already.")
    others = _class_of(board, into) if into >= 0 else []
    name = _merged_name(board, source, into)
    said = f"Merged {board.label(source)} and {board.label(into)} into “{name}”"
    _rename(board, [*_class_of(board, source), *others], name, said=said, seen=seen)


def _merged_name(board: Board, source: int, into: int) -> str:
    if into < 0:
        return board.label(into)
    names = (board.state(into).name, board.state(source).name)
    given = [name for name in names if name is not None]
    is_known = [name for name in given if name in board.known]
    return (*is_known, *given, board.label(into))[0]


def separate_cluster(board: Board, cluster: int, *, seen: int) -> None:
    """Take a cluster out of its class; it has no name any more."""
    state = board.state(board.require_cluster(cluster))
    if state.name is None:
        raise BadDecisionError("This cluster has no name to take away.")
    said = f"Took cluster {cluster} out of “{state.name}”"
    board.store.decide(Edit(said, {cluster: decided(state, name=None)}), seen=seen)


def ignore_clusters(board: Board, clusters: Sequence[int], *, ignored: bool, seen: int) -> None:
    """Say that clusters are no classes, or take that back."""
    said = f"{'Ignored' if ignored else 'No longer ignored'}: {_clusters(board, clusters)}"
    states = {c: decided(board.state(c), ignored=ignored) for c in _chosen(board, clusters)}
    board.store.decide(Edit(said, states), seen=seen)


def skip_cluster(board: Board, cluster: int, *, seen: int) -> None:
    """Note that somebody has looked at a cluster and decided nothing."""
    state = board.state(board.require_cluster(cluster))
    board.store.decide(
        Edit(f"Skipped {board.label(cluster)}", {cluster: decided(state)}), seen=seen
    )


def move_regions(board: Board, keys: Sequence[RegionKey], place: int, *, seen: int) -> None:
    """Move regions to a cluster, to `NOT_AN_OBJECT`, or to the known class that took them."""
    if place != NOT_AN_OBJECT and place >= 0:
        board.require_cluster(place)
    said = f"Moved {_regions(keys)} to {board.label(place)}"
    board.store.decide(Edit(said, {}, _moves(board, keys, place)), seen=seen)


def move_regions_to_name(board: Board, keys: Sequence[RegionKey], text: str, *, seen: int) -> None:
    """Move regions to the class of that name; where it has no cluster, to a new one."""
    name = _name_for(board, text)
    name = board.spelling(name) or name
    clusters = board.clusters_named(name)
    if clusters:
        move_regions(board, keys, min(clusters), seen=seen)
        return
    _move_to_new(board, keys, name, seen=seen)


def move_regions_to_new(board: Board, keys: Sequence[RegionKey], *, seen: int) -> None:
    """Move regions to a new cluster that has no name yet."""
    _move_to_new(board, keys, None, seen=seen)


def _move_to_new(board: Board, keys: Sequence[RegionKey], name: str | None, *, seen: int) -> None:
    moves = _moves(board, keys, None)
    cluster = board.store.new_cluster()
    said = f"Moved {_regions(keys)} to a new cluster “{name or cluster_name(cluster)}”"
    state = ClusterState(name, looked_at=name is not None)
    edit = Edit(said, {cluster: state}, dict.fromkeys(moves, cluster))
    board.store.decide(edit, seen=seen)


def move_regions_back(board: Board, keys: Sequence[RegionKey], *, seen: int) -> None:
    """Put regions back where the head has put them."""
    said = f"Moved {_regions(keys)} back"
    board.store.decide(Edit(said, {}, _moves(board, keys, None)), seen=seen)


def accept_suggestions(board: Board, clusters: Sequence[int], *, seen: int) -> None:
    """Decide for clusters what their regions' earlier classes suggest.

    Clusters that are to be one class without a name are decided together.
    """
    open_ones = board.open_suggestions()
    wanted = set(_chosen(board, clusters))
    if not wanted <= open_ones.keys():
        raise BadDecisionError("There is no suggestion for this cluster, or it is decided.")
    unnamed = {one.name for c in wanted if (one := open_ones[c]).name and is_cluster_name(one.name)}
    accepted = [one for c, one in open_ones.items() if c in wanted or one.name in unnamed]
    states = {
        one.cluster: decided(board.state(one.cluster), ignored=True)
        if one.name is None
        else decided(board.state(one.cluster), name=board.spelling(one.name) or one.name)
        for one in accepted
    }
    titles = sorted({one.title for one in accepted})
    said = f"Carried over from {' and '.join(titles)}: {_clusters(board, sorted(states))}"
    board.store.decide(Edit(said, states), seen=seen)


def accept_moves(board: Board, name: str | None, *, seen: int) -> None:
    """Put regions again where people had put them: into a class, or None, among the no objects."""
    keys = board.open_moves().get(name, [])[:MAX_MOVED]
    if name is None:
        move_regions(board, keys, NOT_AN_OBJECT, seen=seen)
    else:
        move_regions_to_name(board, keys, name, seen=seen)


def _chosen(board: Board, clusters: Sequence[int]) -> list[int]:
    """The clusters, of which there is at least one and each is there."""
    if not clusters:
        raise BadDecisionError("Choose a cluster.")
    return [board.require_cluster(cluster) for cluster in dict.fromkeys(clusters)]


def _clusters(board: Board, clusters: Sequence[int]) -> str:
    return board.label(clusters[0]) if len(clusters) == 1 else f"{len(clusters)} clusters"


def _moves(
    board: Board, keys: Sequence[RegionKey], place: int | None
) -> dict[RegionKey, int | None]:
    """Region -> where it goes; None: back home. Its own cluster: somebody has checked it."""
    if not 0 < len(keys) <= MAX_MOVED:
        raise BadDecisionError(f"Choose 1 to {MAX_MOVED} regions.")
    moves: dict[RegionKey, int | None] = {}
    for key in keys:
        row = board.membership.row_of(key)
        if row is None:
            raise UnknownPlaceError(f"There is no region {key[1]} of image {key[0]}.")
        home = board.home(row)
        if place is not None and place < NOT_AN_OBJECT and home != place:
            raise BadDecisionError("To move regions to a known class, type its name.")
        moves[key] = place if place is None or place >= NOT_AN_OBJECT else None
    return moves


def _regions(keys: Sequence[RegionKey]) -> str:
    return "1 region" if len(keys) == 1 else f"{len(keys)} regions"


def _class_of(board: Board, cluster: int) -> list[int]:
    """The clusters that go by the same name; a known class's clusters each stand for themselves."""
    name = board.state(cluster).name
    if name is None or name in board.known:
        return [cluster]
    return sorted({cluster, *board.clusters_named(name)})


def _rename(board: Board, clusters: Sequence[int], name: str, *, said: str, seen: int) -> None:
    states = {c: decided(board.state(c), name=name, ignored=False) for c in clusters}
    board.store.decide(Edit(said, states), seen=seen)
