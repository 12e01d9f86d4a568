from pathlib import Path

import pytest

from rncdl.naming import deciding
from rncdl.naming.board import Board
from rncdl.naming.carrying import CarriedOver, Earlier, Suggestion, carry_over
from rncdl.naming.deciding import BadDecisionError
from rncdl.naming.decisions import NOT_AN_OBJECT, Decisions
from rncdl.naming.membership import Membership
from rncdl.naming.shared_regions import match_regions
from rncdl.naming.store import DecisionStore, read_decisions
from tests.naming.made_up import NO_OBJECT, NUM_CLUSTERS, NUM_KNOWN, MadeUp, Region


def novel(clusters: list[int]) -> list[Region]:
    """One region of image 0 for each cluster that takes it."""
    return [Region((0, i), NUM_KNOWN + cluster) for i, cluster in enumerate(clusters)]


def carried(tmp_path: Path, before: list[int], now: list[int], **decided) -> CarriedOver:
    """What is suggested where the same regions went to clusters `before`, and now to others."""
    earlier = MadeUp(tmp_path / "before").membership(novel(before))
    return carry_over(
        MadeUp(tmp_path / "now").membership(novel(now)),
        [Earlier("the first", earlier, Decisions(**decided))],
    )


def test_where_nothing_was_decided_nothing_is_suggested(tmp_path: Path):
    found = carried(tmp_path, [0, 0, 1], [0, 0, 1])
    assert (found.clusters, found.moved) == ({}, {})


def test_a_name_goes_where_most_regions_of_a_cluster_come_from(tmp_path: Path):
    before = [0, 0, 0, 0, 1, 1, 1, 2]
    now = [3, 3, 3, 1, 3, 1, 1, 0]
    found = carried(tmp_path, before, now, names={0: "mug", 1: "jug"}, ignored=frozenset({2}))
    assert found.clusters == {
        3: Suggestion(3, "mug", shared=3, size=4, class_size=4, title="the first"),
        1: Suggestion(1, "jug", shared=2, size=3, class_size=3, title="the first"),
        0: Suggestion(0, None, shared=1, size=1, class_size=1, title="the first"),
    }


def test_a_cluster_of_which_less_than_half_was_of_a_class_is_left_alone(tmp_path: Path):
    found = carried(tmp_path, [0, 0, 1, 2, 3], [0, 0, 0, 0, 0], names={0: "mug"})
    assert found.clusters == {}


def test_clusters_of_one_earlier_class_are_suggested_together(tmp_path: Path):
    found = carried(tmp_path, [0, 1, 1, 3], [0, 1, 2, 3], names={0: "mug", 1: "mug"})
    assert {c: one.name for c, one in found.clusters.items()} == {0: "mug", 1: "mug", 2: "mug"}
    assert {one.class_size for one in found.clusters.values()} == {3}


def test_a_merge_without_a_name_takes_the_number_of_a_new_cluster(tmp_path: Path):
    unnamed = {0: "novel_0001", 1: "novel_0001"}
    found = carried(tmp_path, [0, 1], [3, 2], names=unnamed)
    assert {c: one.name for c, one in found.clusters.items()} == {2: "novel_0002", 3: "novel_0002"}
    assert carried(tmp_path, [0, 1], [3, 3], names=unnamed).clusters == {}


def test_regions_moved_by_hand_count_for_where_they_were_put(tmp_path: Path):
    moved = {(0, 0): 4, (0, 1): 4, (0, 2): NOT_AN_OBJECT}
    found = carried(tmp_path, [0, 0, 0, 1], [2, 2, 1, 0], names={4: "pot"}, moved=moved)
    assert {c: one.name for c, one in found.clusters.items()} == {2: "pot", 1: None}
    assert found.moved == {(0, 0): "pot", (0, 1): "pot", (0, 2): None}


def test_of_two_earlier_discoveries_the_one_with_more_shared_regions_is_heard(tmp_path: Path):
    now = MadeUp(tmp_path / "now").membership(novel([0, 0, 0]))
    of_two = MadeUp(tmp_path / "a").membership(novel([1, 1, 2]))
    of_three = MadeUp(tmp_path / "b").membership(novel([1, 1, 1]))
    found = carry_over(
        now,
        [
            Earlier("newer", of_two, Decisions(names={1: "mug"}, moved={(0, 2): NOT_AN_OBJECT})),
            Earlier("older", of_three, Decisions(names={1: "cup", 4: "pot"}, moved={(0, 2): 4})),
        ],
    )
    assert [found.clusters[0].name, found.clusters[0].title] == ["mug", "newer"]
    assert found.moved == {(0, 2): None}


def test_regions_of_the_same_bank_are_the_same_by_number(tmp_path: Path):
    before = MadeUp(tmp_path / "a").membership([Region((1, 0), 3), Region((0, 7), 2)])
    now = MadeUp(tmp_path / "b").membership([Region((1, 0), 2), Region((0, 7), 5)])
    rows = match_regions(now, before).rows
    assert [before.key_of(row) for row in rows] == [now.key_of(row) for row in range(2)]


def test_what_was_taken_for_no_object_is_told_by_its_number_as_well(tmp_path: Path):
    """Two heads that know the background see different regions of one bank as no objects."""
    regions = [NO_OBJECT, 2, 3, 3, 3]
    before = MadeUp(tmp_path / "before").membership(with_outputs(regions))
    now = MadeUp(tmp_path / "now").membership(with_outputs([4, 4, 4, 4, NO_OBJECT]))
    for row, row_before in enumerate(match_regions(now, before).rows.tolist()):
        assert now.key_of(row) == before.key_of(row_before)
    decisions = Decisions(names={0: "jug", 1: "mug"})
    found = carry_over(now, [Earlier("the first", before, decisions)])
    assert {c: (one.name, one.shared, one.size) for c, one in found.clusters.items()} == {
        2: ("mug", 2, 4)
    }


def with_outputs(outputs: list[int]) -> list[Region]:
    return [Region((0, i), output) for i, output in enumerate(outputs)]


def test_regions_of_another_bank_are_the_same_by_image_and_box(tmp_path: Path):
    before = MadeUp(tmp_path / "a", ["/p.png", "/q.png"]).membership(
        [Region((0, 0), 2, (0, 0, 10, 10)), Region((1, 0), 3, (0, 0, 10, 10))], bank="old"
    )
    now = MadeUp(tmp_path / "b", ["/new.png", "/q.png", "/p.png"]).membership(
        [
            Region((0, 0), 2, (0, 0, 10, 10)),
            Region((1, 0), 2, (0, 0, 10, 8)),
            Region((1, 1), 2, (0, 0, 10, 5.1)),
            Region((1, 2), 2, (0, 0, 10, 4.9)),
            Region((2, 5), 2, (1, 0, 10, 10)),
        ],
        bank="new",
    )
    found = match_regions(now, before, shown=False)
    keys = [None if row < 0 else before.key_of(row) for row in found.rows]
    assert keys == [None, (1, 0), (1, 0), None, (0, 0)]
    assert found.iou == pytest.approx([0, 0.8, 0.51, 0, 0.9], abs=1e-6)


def test_of_a_remade_bank_only_the_box_most_like_a_moved_one_is_moved(tmp_path: Path):
    before = MadeUp(tmp_path / "a").membership([Region((0, 0), 2)], bank="old")
    now = MadeUp(tmp_path / "b").membership(
        [Region((0, 3), 2, (0, 0, 10, 6)), Region((0, 4), 2, (0, 0, 10, 9))], bank="new"
    )
    decisions = Decisions(moved={(0, 0): NOT_AN_OBJECT})
    assert carry_over(now, [Earlier("", before, decisions)], shown=False).moved == {(0, 4): None}


@pytest.fixture
def board(tmp_path: Path) -> Board:
    """Clusters 0 to 2 were mugs, ignored and cups; cluster 3 is new, and one region was moved."""
    regions = novel([0, 0, 1, 2, 3, 3])
    now = MadeUp(tmp_path / "now").membership(regions)
    return Board(now, open_store(tmp_path, now), ("car", "dog"), suggestions())


def suggestions() -> CarriedOver:
    names = {0: "mug", 1: None, 2: "Cup"}
    found = {c: Suggestion(c, name, 1, 1, 1, "the first") for c, name in names.items()}
    return CarriedOver(found, {(0, 4): "mug", (0, 5): None, (0, 0): "mug"})


def open_store(tmp_path: Path, now: Membership) -> DecisionStore:
    return DecisionStore(tmp_path / "d.sqlite", num_clusters=NUM_CLUSTERS, heads="h")


def accept(board: Board, *clusters: int) -> None:
    deciding.accept_suggestions(board, clusters, seen=board.version)
    board.refresh()


def test_nothing_counts_until_it_is_accepted(board: Board):
    assert set(board.open_suggestions()) == {0, 1, 2}
    decisions = read_decisions(board.store.path)
    assert (decisions.names, decisions.ignored, decisions.moved) == ({}, frozenset(), {})


def test_suggestions_are_accepted_one_by_one_or_all_at_once_and_undone(board: Board):
    accept(board, 0)
    assert dict(read_decisions(board.store.path).names) == {0: "mug"}
    assert set(board.open_suggestions()) == {1, 2}
    accept(board, 1, 2)
    decisions = read_decisions(board.store.path)
    assert (dict(decisions.names), decisions.ignored) == ({0: "mug", 2: "Cup"}, frozenset({1}))
    assert board.store.history()[0].said == "Carried over from the first: 2 clusters"
    board.store.undo()
    board.refresh()
    assert set(board.open_suggestions()) == {1, 2}


def test_what_somebody_has_decided_is_not_suggested_any_more(board: Board):
    deciding.ignore_clusters(board, [0], ignored=True, seen=board.version)
    board.refresh()
    assert set(board.open_suggestions()) == {1, 2}
    with pytest.raises(BadDecisionError):
        accept(board, 0)
    with pytest.raises(BadDecisionError):
        accept(board, 3)


def test_an_accepted_name_takes_the_spelling_that_is_there(board: Board):
    deciding.name_clusters(board, [3], "cup", merge=False, seen=board.version)
    board.refresh()
    accept(board, 2)
    assert dict(read_decisions(board.store.path).names) == {3: "cup", 2: "cup"}


def test_clusters_that_are_to_be_one_unnamed_class_are_accepted_together(
    tmp_path: Path, board: Board
):
    found = {c: Suggestion(c, "novel_0001", 1, 1, 2, "") for c in (1, 2)}
    board = Board(board.membership, board.store, (), CarriedOver(found))
    accept(board, 2)
    assert dict(read_decisions(board.store.path).names) == {1: "novel_0001", 2: "novel_0001"}


def test_regions_are_put_again_where_they_are_not_already(board: Board):
    assert board.open_moves() == {"mug": [(0, 4), (0, 0)], None: [(0, 5)]}
    accept(board, 0)
    assert board.open_moves() == {"mug": [(0, 4)], None: [(0, 5)]}
    deciding.accept_moves(board, "mug", seen=board.version)
    board.refresh()
    deciding.accept_moves(board, None, seen=board.version)
    board.refresh()
    assert dict(read_decisions(board.store.path).moved) == {(0, 4): 0, (0, 5): NOT_AN_OBJECT}
    assert board.open_moves() == {}
    with pytest.raises(BadDecisionError):
        deciding.accept_moves(board, "mug", seen=board.version)
