"""Decisions are kept: undone, redone, made by two at once, and through kill -9."""

import os
import random
import signal
import sqlite3
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rncdl.errors import UserError
from rncdl.naming.decisions import NOT_AN_OBJECT, Decisions
from rncdl.naming.edits import ClusterState, Edit
from rncdl.naming.store import ChangedMeanwhileError, DecisionStore, read_decisions
from tests.naming.killed_writer import edit_of

NUM_CLUSTERS = 5
NAMED = ClusterState("mug", looked_at=True)
IGNORED = ClusterState(ignored=True, looked_at=True)


def open_store(path: Path, heads: str = "heads") -> DecisionStore:
    return DecisionStore(path, num_clusters=NUM_CLUSTERS, heads=heads)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "decisions.sqlite"


def test_without_a_file_nothing_is_decided_and_none_is_made(path: Path):
    assert read_decisions(path) == Decisions()
    assert not path.exists()


def test_a_fresh_store_is_empty(path: Path):
    with open_store(path) as store:
        assert read_decisions(path) == Decisions()
        assert store.version() == 0
        assert store.history() == []
        assert (store.undo(), store.redo()) == (None, None)
        assert (store.next_undo(), store.next_redo()) == (None, None)
        assert store.version() == 0


def test_decisions_are_read_as_they_stand(path: Path):
    with open_store(path) as store:
        store.decide(Edit("named", {1: NAMED, 2: NAMED}))
        store.decide(Edit("ignored", {3: IGNORED}))
        store.decide(Edit("skipped", {0: ClusterState(looked_at=True)}))
        store.decide(Edit("moved", {}, {(4, 7): 2, (4, 8): NOT_AN_OBJECT, (5, 0): 1}))
        store.decide(Edit("moved back", {}, {(5, 0): None}))
        expected = Decisions(
            names={1: "mug", 2: "mug"},
            ignored=frozenset({3}),
            moved={(4, 7): 2, (4, 8): NOT_AN_OBJECT},
            looked_at=frozenset({0, 1, 2, 3}),
        )
        assert read_decisions(path) == expected  # while the store is open
    assert read_decisions(path) == expected


def test_undo_and_redo_go_through_the_whole_history_and_across_restarts(path: Path):
    edits = [
        Edit("a", {1: NAMED}),
        Edit("b", {1: ClusterState("cup", looked_at=True), 2: IGNORED}),
        Edit("c", {}, {(0, 1): 2}),
        Edit("d", {1: NAMED}, {(0, 1): NOT_AN_OBJECT}),
    ]
    states = [Decisions()]
    with open_store(path) as store:
        for edit in edits:
            store.decide(edit)
            states.append(read_decisions(path))
    for number in reversed(range(len(edits))):
        with open_store(path) as store:
            undone = store.undo()
        assert undone is not None
        assert undone.said == edits[number].said
        assert read_decisions(path) == states[number]
    for number in range(len(edits)):
        with open_store(path) as store:
            redone = store.redo()
        assert redone is not None
        assert redone.said == edits[number].said
        assert read_decisions(path) == states[number + 1]


def test_a_decision_drops_what_was_undone_but_not_its_history(path: Path):
    with open_store(path) as store:
        store.decide(Edit("first", {1: NAMED}))
        store.decide(Edit("regretted", {2: IGNORED}))
        store.undo()
        store.decide(Edit("instead", {2: NAMED}))
        assert store.redo() is None
        assert [(line.said, line.status) for line in store.history()] == [
            ("instead", "done"),
            ("regretted", "dropped"),
            ("first", "done"),
        ]
        assert read_decisions(path).names == {1: "mug", 2: "mug"}
        assert read_decisions(path).ignored == frozenset()


def test_history_is_read_page_by_page(path: Path):
    with open_store(path) as store:
        for number in range(7):
            store.decide(Edit(str(number), {0: NAMED}))
        latest = store.history(limit=3)
        assert [line.said for line in latest] == ["6", "5", "4"]
        assert [line.said for line in store.history(before=latest[-1].id)] == ["3", "2", "1", "0"]


def test_undo_takes_back_only_what_the_person_means(path: Path):
    with open_store(path) as store:
        mine = store.decide(Edit("mine", {1: NAMED}))
        store.decide(Edit("theirs", {2: NAMED}))
        with pytest.raises(ChangedMeanwhileError):
            store.undo(expected=mine)
        assert read_decisions(path).names == {1: "mug", 2: "mug"}


def test_what_somebody_else_has_changed_is_not_overwritten(path: Path):
    with open_store(path) as one, open_store(path) as other:
        seen = one.version()
        other.decide(Edit("theirs", {1: NAMED}, {(0, 0): 3}), seen=seen)
        for edit in (Edit("mine", {1: IGNORED, 2: IGNORED}), Edit("mine", {}, {(0, 0): 4})):
            with pytest.raises(ChangedMeanwhileError):
                one.decide(edit, seen=seen)
        one.decide(Edit("mine", {2: IGNORED}, {(0, 1): 4}), seen=seen)  # nobody touched these
        assert read_decisions(path) == Decisions(
            names={1: "mug"},
            ignored=frozenset({2}),
            moved={(0, 0): 3, (0, 1): 4},
            looked_at=frozenset({1, 2}),
        )
        other.undo()
        with pytest.raises(ChangedMeanwhileError):
            one.decide(Edit("mine", {2: NAMED}), seen=one.version() - 1)


def test_changes_since_a_version_include_what_an_undo_took_back(path: Path):
    with open_store(path) as store:
        store.decide(Edit("a", {1: NAMED}, {(0, 0): 3}))
        seen = store.version()
        assert store.changed_since(seen).clusters == {}
        store.undo()
        changed = store.changed_since(seen)
        assert changed.version == store.version() == seen + 1
        assert changed.clusters == {1: ClusterState()}
        assert changed.regions == {(0, 0): None}


def test_two_writers_at_once_lose_nothing(path: Path):
    open_store(path).close()

    def write(first: int) -> None:
        with open_store(path) as store:
            for region in range(100):
                store.decide(Edit("moved", {}, {(first, region): region}))

    threads = [threading.Thread(target=write, args=(first,)) for first in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    expected = {(first, region): region for first in range(3) for region in range(100)}
    assert read_decisions(path).moved == expected
    with open_store(path) as store:
        assert store.version() == len(expected)


def test_no_number_is_given_to_two_clusters(path: Path):
    with open_store(path) as store:
        assert [store.new_cluster(), store.new_cluster()] == [NUM_CLUSTERS, NUM_CLUSTERS + 1]
    with open_store(path) as store:
        assert store.new_cluster() == NUM_CLUSTERS + 2


def test_an_edit_that_fails_leaves_nothing(path: Path):
    with open_store(path) as store:
        with pytest.raises(TypeError):
            store.decide(Edit("broken", {1: NAMED}, {(0, 0): object()}))  # type: ignore[dict-item]
        assert store.version() == 0
        assert store.history() == []
        store.decide(Edit("fine", {1: NAMED}))


def test_decisions_about_other_heads_are_refused(path: Path):
    open_store(path).close()
    with pytest.raises(UserError, match="other heads"):
        open_store(path, heads="others")


@pytest.mark.parametrize("content", [b"no database at all" * 100, b""])
def test_what_is_no_database_of_decisions_is_said(path: Path, content: bytes):
    path.write_bytes(content)
    with pytest.raises(UserError, match=str(path)):
        read_decisions(path)


def test_a_file_of_another_format_is_said(path: Path):
    open_store(path).close()
    with sqlite3.connect(path) as db:
        db.execute("UPDATE facts SET value = 99 WHERE key = 'format'")
    db.close()
    for use in (open_store, read_decisions):
        with pytest.raises(UserError, match="format 99"):
            use(path)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_decisions_are_read_in_a_folder_that_cannot_be_written_to(path: Path):
    with open_store(path) as store:
        store.decide(Edit("named", {1: NAMED}))
    path.parent.chmod(0o500)
    try:
        assert read_decisions(path).names == {1: "mug"}
    finally:
        path.parent.chmod(0o700)


@given(st.lists(st.sampled_from(["decide", "undo", "redo"]), max_size=30), st.randoms())
def test_any_walk_through_the_history_ends_where_a_list_of_states_says(
    tmp_path_factory: pytest.TempPathFactory, steps: list[str], draw: random.Random
):
    path = tmp_path_factory.mktemp("walk") / "decisions.sqlite"
    states, place = [Decisions()], 0
    with open_store(path) as store:
        for number, step in enumerate(steps):
            if step == "decide":
                cluster = draw.randrange(3)
                store.decide(
                    Edit("e", {cluster: ClusterState(str(number))}, {(0, cluster): number})
                )
                states, place = [*states[: place + 1], read_decisions(path)], place + 1
            elif step == "undo":
                assert (store.undo() is None) == (place == 0)
                place = max(0, place - 1)
            else:
                assert (store.redo() is None) == (place == len(states) - 1)
                place = min(len(states) - 1, place + 1)
            assert read_decisions(path) == states[place]


def test_killed_at_any_moment_nothing_that_was_answered_for_is_lost(path: Path):
    draw = random.Random(0)
    step = 0
    for _ in range(6):
        step = _write_until_killed(path, step, after=draw.randrange(1, 25))
        with DecisionStore(path, num_clusters=20, heads="h") as store:
            store.redo()  # it may have been killed between an undo and its redo
        now = read_decisions(path)
        written = int(now.names[0].removeprefix("name "))
        assert written in (step, step + 1)  # one more may be written but not yet said
        assert now.names == dict.fromkeys(range(20), f"name {written}")
        rows = {
            key for one in range(max(1, written - 6), written + 1) for key in edit_of(one).regions
        }
        assert {key: now.moved[key] for key in rows} == {
            key: one
            for one in range(max(1, written - 6), written + 1)
            for key in edit_of(one).regions
        }
        with DecisionStore(path, num_clusters=20, heads="h") as store:
            done = [line for line in store.history(limit=10**6) if line.status == "done"]
            assert [line.said for line in done] == [f"step {one}" for one in range(written, 0, -1)]
        step = written


def _write_until_killed(path: Path, step: int, *, after: int) -> int:
    """The last step that a process answered for, which is killed after so many."""
    script = Path(__file__).with_name("killed_writer.py")
    repository = Path(__file__).resolve().parents[2]
    process = subprocess.Popen(
        [sys.executable, str(script), str(path), str(step)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(repository)},
    )
    assert process.stdout is not None
    for _ in range(after):
        process.stdout.readline()
    process.send_signal(signal.SIGKILL)
    said = process.stdout.read().splitlines()
    process.wait()
    return int(said[-1].split()[1]) if said and said[-1].count(" ") == 1 else step + after
