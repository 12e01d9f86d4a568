"""Decisions through the server: what they change, and that all of it can be undone."""

from pathlib import Path
from typing import Any

from rncdl.discovery.bank import Bank
from rncdl.discovery.heads import DiscoveryHeads
from rncdl.naming.board import known_place
from rncdl.naming.store import read_decisions
from tests.naming.served import Site, serve


def decide(site: Site, kind: str, **decision: Any) -> dict[str, Any]:
    status, answer = site.decide(kind, **decision)
    assert status == 200, answer
    return answer


def names(site: Site) -> dict[int, str]:
    return dict(read_decisions(site.board.store.path).names)


def keys(site: Site, place: int) -> list[list[int]]:
    return [one["key"] for one in site.get(f"api/members/{place}")["members"]]


def test_at_first_nothing_is_decided_and_every_region_has_its_place(site: Site):
    state = site.get("api/state")
    assert state["version"] == 0
    assert (state["undo"], state["redo"]) == (None, None)
    assert not any(c["name"] or c["ignored"] or c["looked_at"] for c in state["cards"])
    counts = site.board.membership
    assert sum(c["size"] for c in state["cards"]) == sum(
        len(counts.rows_of_output(o)) for o in range(8)
    )


def test_a_name_loses_surrounding_space(site: Site):
    decide(site, "name", clusters=[1], name="  coffee   mug ")
    assert names(site) == {1: "coffee mug"}


def test_a_name_that_is_taken_merges_only_when_asked_and_keeps_its_spelling(site: Site):
    decide(site, "name", clusters=[1], name="Mug")
    status, answer = site.decide("name", clusters=[2], name=" mug")
    assert (status, answer["taken"]) == (409, "Mug")
    assert names(site) == {1: "Mug"}
    decide(site, "name", clusters=[2], name=" mug", merge=True)
    assert names(site) == {1: "Mug", 2: "Mug"}
    assert site.decide("name", clusters=[3], name="CAR")[1]["taken"] == "car"


def test_what_classes_without_a_name_are_called_is_no_name_but_that_of_such_a_class(
    tmp_path: Path, bank: Bank, heads: DiscoveryHeads
):
    with serve(tmp_path, bank, heads, known=("car", "found_0012", "tree")) as site:
        regions = keys(site, 3)[:1]
        for kind, what in (("name", {"clusters": [1]}), ("move_to_name", {"regions": regions})):
            status, answer = site.decide(kind, **what, name="found_0001")
            assert (status, "choose a name of your own" in answer["error"]) == (400, True)
        assert names(site) == {}
        status, answer = site.decide("name", clusters=[1], name="Found_0012")
        assert (status, answer["taken"]) == (409, "found_0012")
        decide(site, "name", clusters=[1], name="found_0012", merge=True)
        decide(site, "merge", cluster=2, into=known_place(1))
        assert names(site) == {1: "found_0012", 2: "found_0012"}


def test_naming_a_class_names_all_its_clusters(site: Site):
    decide(site, "merge", cluster=1, into=2)
    assert names(site) == {1: "novel_0002", 2: "novel_0002"}
    decide(site, "name", clusters=[1], name="mug")
    assert names(site) == {1: "mug", 2: "mug"}


def test_a_merge_keeps_the_named_sides_name(site: Site):
    decide(site, "name", clusters=[1], name="mug")
    decide(site, "merge", cluster=1, into=2)
    assert names(site) == {1: "mug", 2: "mug"}
    decide(site, "name", clusters=[3], name="cup")
    decide(site, "merge", cluster=2, into=3)
    assert names(site) == {1: "cup", 2: "cup", 3: "cup"}
    decide(site, "merge", cluster=3, into=known_place(1))
    assert set(names(site).values()) == {"dog"}
    assert site.decide("merge", cluster=3, into=known_place(1))[0] == 400


def test_ignoring_is_taken_back(site: Site):
    decide(site, "ignore", clusters=[4])
    assert read_decisions(site.board.store.path).ignored == {4}
    decide(site, "ignore", clusters=[4], ignored=False)
    assert read_decisions(site.board.store.path).ignored == frozenset()


def test_regions_are_moved_and_come_back(site: Site):
    cluster = max(range(5), key=lambda c: len(keys(site, c)))
    before = keys(site, cluster)
    first, second, *_ = before
    decide(site, "move", regions=[first], into=-1)
    answer = decide(site, "move_to_name", regions=[second], name="teapot")
    made = next(c for c in answer["cards"] if c["name"] == "teapot")
    assert made["id"] == 5
    assert keys(site, -1) == [first]
    assert keys(site, 5) == [second]
    assert keys(site, cluster) == before[2:]
    decide(site, "move_to_name", regions=[first], name="TEAPOT")
    assert sorted(keys(site, 5)) == sorted([first, second])
    assert keys(site, -1) == []
    decide(site, "move_back", regions=[first, second])
    assert keys(site, cluster) == before
    assert read_decisions(site.board.store.path).moved == {}


def test_a_region_put_into_its_own_cluster_stays_there_as_checked(site: Site):
    cluster = max(range(5), key=lambda c: len(keys(site, c)))
    before = keys(site, cluster)
    decide(site, "move", regions=[before[-1]], into=cluster)
    assert keys(site, cluster) == [before[-1], *before[:-1]]
    assert read_decisions(site.board.store.path).moved == {tuple(before[-1]): cluster}
    decide(site, "move_back", regions=[before[-1]])
    assert keys(site, cluster) == before


def test_everything_is_undone_and_redone(site: Site):
    region = keys(site, 0)[0]
    before = site.get("api/state")["cards"]
    decide(site, "name", clusters=[0], name="mug")
    decide(site, "merge", cluster=1, into=0)
    decide(site, "ignore", clusters=[2])
    decide(site, "skip", cluster=3)
    decide(site, "separate", cluster=1)
    decide(site, "move", regions=[region], into=-1)
    after = site.get("api/state")["cards"]
    for _ in range(6):
        decide(site, "undo")
    undone = site.get("api/state")
    assert (undone["cards"], undone["undo"]) == (before, None)
    for _ in range(6):
        decide(site, "redo")
    assert site.get("api/state")["cards"] == after
    assert [line["status"] for line in site.get("api/history")] == ["done"] * 6


def test_two_people_do_not_overwrite_each_other(site: Site):
    decide(site, "name", clusters=[0], name="mug")
    status, _ = site.decide("name", clusters=[0], name="jug", seen=0)
    assert status == 409
    decide(site, "name", clusters=[1], name="jug", seen=0)
    assert names(site) == {0: "mug", 1: "jug"}
    told = site.get("api/changes?since=1")
    assert [card["id"] for card in told["cards"]] == [1]
