"""The clusters as they stand: what the head made of the regions, and what people made of that.

A place is where regions are: a cluster, from 0; those that people found to be no objects,
`NOT_AN_OBJECT`; a known class, below that (`known_place`); and after the last of these, those in
which the head sees no object.
"""

from collections import Counter, defaultdict
from dataclasses import replace
from typing import Any

import numpy as np

from rncdl.classes import cluster_name
from rncdl.naming.carrying import CarriedOver, Suggestion
from rncdl.naming.decisions import NOT_AN_OBJECT
from rncdl.naming.edits import ClusterState, RegionKey
from rncdl.naming.membership import Membership
from rncdl.naming.store import DecisionStore

_NUM_PICTURES = 8
_NUM_HOMES = 3
_LOOKED_THROUGH = 400
"""Members among which pictures of different images are looked for."""


class UnknownPlaceError(Exception):
    """There is no such cluster, class or region."""


def known_place(known_class: int) -> int:
    """The place of a known class."""
    return NOT_AN_OBJECT - 1 - known_class


class Board:
    """Clusters, their members and names, brought up to date with the store by `refresh`."""

    def __init__(
        self,
        membership: Membership,
        store: DecisionStore,
        known: tuple[str, ...],
        carried: CarriedOver | None = None,
    ) -> None:
        """carried: what was decided about earlier discoveries."""
        self.membership, self.store, self.known = membership, store, known
        self.taken_for_nothing = known_place(len(known))
        """the place of regions in which the head sees no object"""
        self._carried = carried or CarriedOver()
        self.version = 0
        self._states: dict[int, ClusterState] = {}
        self._moved: dict[RegionKey, int] = {}
        self._arrived: dict[int, set[int]] = defaultdict(set)
        """place -> rows that people have put there"""
        self._left: dict[int, set[int]] = defaultdict(set)
        """place -> rows of it that people have taken away"""
        self._touched: dict[int, int] = {}
        """place -> the version at which it was found changed"""
        self._cards: dict[int, dict[str, Any]] = {}
        self.refresh()

    def refresh(self) -> None:
        """Learn of all decisions, whoever made them."""
        if self.store.version() == self.version:
            return
        changed = self.store.changed_since(self.version)
        self.version = changed.version
        for cluster, state in changed.clusters.items():
            self._states[cluster] = state
            self._touch(cluster)
        for key, place in changed.regions.items():
            self._put(key, place)

    def state(self, cluster: int) -> ClusterState:
        """What people have made of a cluster."""
        return self._states.get(cluster, ClusterState())

    def require_cluster(self, cluster: int) -> int:
        """The cluster, if there is one of that number."""
        made_by_people = cluster in self._states or cluster in self._arrived
        if not (0 <= cluster < self.membership.num_clusters or (cluster >= 0 and made_by_people)):
            raise UnknownPlaceError(f"There is no cluster {cluster}.")
        return cluster

    def label(self, place: int) -> str:
        """What a place is called: its name, or its number."""
        if place == NOT_AN_OBJECT:
            return "not an object"
        if place == self.taken_for_nothing:
            return "taken for no object"
        if place < NOT_AN_OBJECT:
            return self.known[self._known_class(place)]
        return self.state(place).name or cluster_name(place)

    def home(self, row: int) -> int:
        """The place where the head has put a region."""
        cluster, output = self.membership.cluster_of(row), self.membership.output_of(row)
        if cluster is not None:
            return cluster
        is_nothing = output == self.membership.no_object
        return self.taken_for_nothing if is_nothing else known_place(output)

    def clusters_named(self, name: str) -> list[int]:
        """Clusters of that very name, which are one class; ignored ones are left out."""
        return [c for c, state in self._states.items() if state.name == name and not state.ignored]

    def spelling(self, name: str) -> str | None:
        """The class that has this name but for upper and lower case; None: no class has."""
        wanted = name.casefold()
        given = (state.name for state in self._states.values() if not state.ignored)
        return next(
            (one for one in (*self.known, *given) if one and one.casefold() == wanted), None
        )

    def cards(self, since: int | None = None) -> list[dict[str, Any]]:
        """Clusters and known classes in short; `since`: only those changed after that version."""
        if since is not None:
            touched = sorted(p for p, version in self._touched.items() if version > since)
            return [self._card(place) for place in touched]
        made = sorted(c for c in self._touched if c >= self.membership.num_clusters)
        places = (
            *range(self.membership.num_clusters),
            *made,
            NOT_AN_OBJECT,
            *(known_place(k) for k in range(len(self.known))),
            self.taken_for_nothing,
        )
        return [self._card(place) for place in places]

    def members(self, place: int, *, start: int, count: int) -> dict[str, Any]:
        """A part of a place's regions: those put there by people, certain ones, doubtful ones.

        Of those taken for no object the doubtful ones come first: there may be objects among them.
        """
        rows, num_put = self._rows(place)
        is_doubtful = self.membership.is_doubtful(rows)
        is_doubtful[:num_put] = False
        comes_last = ~is_doubtful if place == self.taken_for_nothing else is_doubtful
        order = np.argsort(comes_last, kind="stable")
        shown = order[start : start + count]
        confidence = self.membership.confidence(rows[shown])
        return {
            "place": place,
            "label": self.label(place),
            "total": len(rows),
            "num_doubtful": int(is_doubtful.sum()),
            "members": [
                {
                    "key": self.membership.key_of(int(rows[position])),
                    "confidence": round(float(confidence[i]), 3),
                    "doubtful": bool(is_doubtful[position]),
                    "moved": bool(position < num_put),
                }
                for i, position in enumerate(shown.tolist())
            ],
        }

    def open_suggestions(self) -> dict[int, Suggestion]:
        """Cluster -> what earlier decisions suggest, where nobody has decided anything yet."""
        found = self._carried.clusters
        return {c: one for c, one in found.items() if not self.state(c).looked_at}

    def open_moves(self) -> dict[str | None, list[RegionKey]]:
        """Class -> regions that people had put there by hand, which are elsewhere now.

        None: those that had been found to be no objects. What somebody has put since is left out.
        """
        found: dict[str | None, list[RegionKey]] = defaultdict(list)
        for key, name in self._carried.moved.items():
            row = None if key in self._moved else self.membership.row_of(key)
            if row is not None and self.label(self.home(row)) != name:
                found[name].append(key)
        return dict(found)

    def _put(self, key: RegionKey, cluster: int | None) -> None:
        row = self.membership.row_of(key)
        if row is None:
            return
        home = self.home(row)
        before = self._moved.pop(key, None)
        if before is not None:
            self._arrived[before].discard(row)
            self._touch(before)
        if cluster is None:
            self._left[home].discard(row)
        else:
            self._moved[key] = cluster
            self._left[home].add(row)
            self._arrived[cluster].add(row)
            self._touch(cluster)
        self._touch(home)

    def _touch(self, place: int) -> None:
        self._touched[place] = self.version
        self._cards.pop(place, None)

    def _known_class(self, place: int) -> int:
        known_class = NOT_AN_OBJECT - 1 - place
        if known_class >= len(self.known):
            raise UnknownPlaceError(f"There is no known class {known_class}.")
        return known_class

    def _rows(self, place: int) -> tuple[np.ndarray, int]:
        """Rows of a place's regions, and how many of them, the first, people have put there."""
        put = np.array(sorted(self._arrived.get(place, ())), dtype=np.int64)
        if place == self.taken_for_nothing:
            own = self.membership.rows_of_output(self.membership.no_object)
        elif place < NOT_AN_OBJECT:
            own = self.membership.rows_of_output(self._known_class(place))
        elif place != NOT_AN_OBJECT and self.require_cluster(place) < self.membership.num_clusters:
            own = self.membership.rows_of_cluster(place)
        else:
            own = np.zeros(0, dtype=np.int64)
        left = self._left.get(place)
        if left:
            own = own[~np.isin(own, np.fromiter(left, dtype=np.int64))]
        return np.concatenate([put, own]), len(put)

    def _card(self, place: int) -> dict[str, Any]:
        if place not in self._cards:
            self._cards[place] = self._make_card(place)
        return self._cards[place]

    def _make_card(self, place: int) -> dict[str, Any]:
        rows, num_put = self._rows(place)
        state = self.state(place)
        card: dict[str, Any] = {
            "id": place,
            "label": self.label(place) if place < 0 else cluster_name(place),
            "name": state.name,
            "ignored": state.ignored,
            "looked_at": state.looked_at,
            "size": len(rows),
            "doubtful": round(float(self.membership.is_doubtful(rows[num_put:]).mean()), 3)
            if len(rows) > num_put
            else 0.0,
            "pictures": self._pictures(rows),
        }
        if 0 <= place < self.membership.num_clusters:
            facts = self.membership.facts[place]
            card |= {
                "promise": facts.promise,
                "confidence": facts.confidence,
                "near": list(facts.nearest),
                "known": known_place(facts.nearest_known),
                "likeness": facts.known_likeness,
                "position": facts.position,
            }
        elif place >= 0:
            card["near"] = self._homes(rows)
        return card

    def _homes(self, rows: np.ndarray) -> list[int]:
        """The classes that most of the regions come from, the one with the most first."""
        homes = Counter(self.home(row) for row in rows.tolist())
        del homes[self.taken_for_nothing]
        return [place for place, _ in homes.most_common(_NUM_HOMES)]

    def _pictures(self, rows: np.ndarray) -> list[RegionKey]:
        """The most certain regions of different images."""
        found: dict[int, RegionKey] = {}
        for row in rows[:_LOOKED_THROUGH].tolist():
            key = self.membership.key_of(row)
            found.setdefault(key[0], key)
            if len(found) == _NUM_PICTURES:
                break
        return list(found.values())


def decided(state: ClusterState, **changes: Any) -> ClusterState:
    """The state after a decision: somebody has looked at the cluster."""
    return replace(state, looked_at=True, **changes)
