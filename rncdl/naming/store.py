"""People's decisions on disk: a log that only grows, and the state it has led to.

One SQLite file in WAL mode for each head of a discovery. A decision is one short transaction that
writes its line of the log and what it changes, so that a killed process leaves all of it or
nothing, and people at several pages wait for each other instead of overwriting each other.

Undoing a decision writes back what was there before it; a decision made after that drops what was
undone, which stays in the log but can no longer be redone.
"""

import json
import sqlite3
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

from rncdl.errors import UserError
from rncdl.naming.decisions import Decisions
from rncdl.naming.edits import ClusterState, Edit, RegionKey

_FORMAT = 1
_WAIT_S = 10.0
"""How long a decision waits for those of other processes."""
_TABLES = """
CREATE TABLE facts (key TEXT PRIMARY KEY, value ANY) WITHOUT ROWID;
CREATE TABLE log (
    id INTEGER PRIMARY KEY AUTOINCREMENT, at REAL NOT NULL, said TEXT NOT NULL,
    status TEXT NOT NULL, changes TEXT NOT NULL
);
CREATE INDEX log_by_status ON log (status, id);
CREATE TABLE clusters (
    cluster INTEGER PRIMARY KEY, name TEXT, ignored INTEGER NOT NULL, looked_at INTEGER NOT NULL,
    version INTEGER NOT NULL
);
CREATE INDEX clusters_by_version ON clusters (version);
CREATE TABLE regions (
    image INTEGER, region INTEGER, cluster INTEGER, version INTEGER NOT NULL,
    PRIMARY KEY (image, region)
) WITHOUT ROWID;
CREATE INDEX regions_by_version ON regions (version);
"""

Status = Literal["done", "undone", "dropped"]


@dataclass(frozen=True)
class LogLine:
    """A decision of the past."""

    id: int
    at: float
    """seconds since 1970"""
    said: str
    status: Status


@dataclass(frozen=True)
class Changed:
    """Clusters and regions as they are now."""

    version: int
    clusters: dict[int, ClusterState]
    regions: dict[RegionKey, int | None]


class ChangedMeanwhileError(Exception):
    """What a decision is about is no longer as the person has seen it."""


class DecisionStore:
    """Reads and writes the decisions about one head's clusters.

    Every process has a store of its own on the same file. Threads may share one in turns.
    """

    def __init__(self, path: Path, *, num_clusters: int, heads: str) -> None:
        """Opens the file, or makes it. `heads`: fingerprint of the heads the clusters are of."""
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            self._db = sqlite3.connect(
                path, timeout=_WAIT_S, isolation_level=None, check_same_thread=False
            )
            self._db.execute("PRAGMA journal_mode = WAL")
            # A decision is on the disk when it is answered for, not only with the system.
            self._db.execute("PRAGMA synchronous = FULL")
            self._prepare(num_clusters, heads)
        except sqlite3.Error as error:
            raise _broken(path, error) from error

    def _prepare(self, num_clusters: int, heads: str) -> None:
        facts = {"format": _FORMAT, "heads": heads, "version": 0, "next_cluster": num_clusters}
        with self._transaction():
            if not _has_tables(self._db):
                for statement in _TABLES.split(";"):
                    self._db.execute(statement)
                self._db.executemany("INSERT INTO facts VALUES (?, ?)", facts.items())
        _require_format(self._db, self.path)
        if self._fact("heads") != heads:
            raise UserError(
                f"{self.path}: these decisions are about other heads than those of this discovery; "
                "put the heads back, or move the file away to start anew."
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the file."""
        self._db.close()

    def version(self) -> int:
        """Counts every change, whoever made it."""
        return self._fact("version")

    def changed_since(self, version: int) -> Changed:
        """What is not as it was at that version; at version 0, nobody had touched anything."""
        with self._transaction("DEFERRED"):
            return _read_changed(self._db, version)

    def new_cluster(self) -> int:
        """A number that no cluster has had yet."""
        with self._transaction():
            number = self._fact("next_cluster")
            self._set_fact("next_cluster", number + 1)
        return number

    def decide(self, edit: Edit, *, seen: int | None = None) -> int:
        """Write a decision; the number of its line in the log.

        seen: the version on which it was made. What it changes must not have changed since, or
        `ChangedMeanwhileError` is raised and nothing is written; None takes it as it is now.
        """
        with self._transaction():
            changes = self._changes(edit, self.version() if seen is None else seen)
            self._db.execute("UPDATE log SET status = 'dropped' WHERE status = 'undone'")
            line = self._db.execute(
                "INSERT INTO log (at, said, status, changes) VALUES (?, ?, 'done', ?)",
                (time.time(), edit.said, json.dumps(changes)),
            ).lastrowid
            self._write(changes, "after")
        assert line is not None
        return line

    def undo(self, expected: int | None = None) -> LogLine | None:
        """Take back the last decision; None where there is none.

        expected: the line that the person means; `ChangedMeanwhileError` if another is the last.
        """
        return self._step("done", "undone", "before", expected)

    def redo(self, expected: int | None = None) -> LogLine | None:
        """Bring back the decision that was undone last; None where there is none."""
        return self._step("undone", "done", "after", expected)

    def next_undo(self) -> LogLine | None:
        """The decision that `undo` would take back."""
        return self._next("done")

    def next_redo(self) -> LogLine | None:
        """The decision that `redo` would bring back."""
        return self._next("undone")

    def history(self, *, before: int | None = None, limit: int = 100) -> list[LogLine]:
        """The latest lines of the log, the newest first; `before`: older than this line."""
        rows = self._db.execute(
            "SELECT id, at, said, status FROM log WHERE id < ? ORDER BY id DESC LIMIT ?",
            (2**62 if before is None else before, limit),
        )
        return [LogLine(*row) for row in rows]

    def _step(
        self,
        status: Status,
        becomes: Status,
        side: Literal["before", "after"],
        expected: int | None,
    ) -> LogLine | None:
        with self._transaction():
            line = self._next(status)
            if expected is not None and (line is None or line.id != expected):
                raise ChangedMeanwhileError("Somebody has decided something else meanwhile.")
            if line is None:
                return None
            found = self._db.execute("SELECT changes FROM log WHERE id = ?", (line.id,)).fetchone()
            self._write(json.loads(found[0]), side)
            self._db.execute("UPDATE log SET status = ? WHERE id = ?", (becomes, line.id))
        return line

    def _next(self, status: Status) -> LogLine | None:
        """The newest decision that is done, or the oldest of those that were undone."""
        order = "DESC" if status == "done" else "ASC"
        found = self._db.execute(
            f"SELECT id, at, said, status FROM log WHERE status = ? ORDER BY id {order} LIMIT 1",
            (status,),
        ).fetchone()
        return None if found is None else LogLine(*found)

    def _changes(self, edit: Edit, seen: int) -> dict[str, list]:
        """What the edit changes, as [key, before, after], for the log."""
        clusters = [
            [cluster, asdict(self._cluster(cluster, seen)), asdict(after)]
            for cluster, after in edit.clusters.items()
        ]
        regions = [[*key, self._region(key, seen), after] for key, after in edit.regions.items()]
        return {"clusters": clusters, "regions": regions}

    def _write(self, changes: Mapping[str, list], side: Literal["before", "after"]) -> None:
        version = self.version() + 1
        place = -2 if side == "before" else -1
        self._db.executemany(
            "INSERT OR REPLACE INTO clusters VALUES (?, ?, ?, ?, ?)",
            [(change[0], *change[place].values(), version) for change in changes["clusters"]],
        )
        self._db.executemany(
            "INSERT OR REPLACE INTO regions VALUES (?, ?, ?, ?)",
            [(*change[:2], change[place], version) for change in changes["regions"]],
        )
        self._set_fact("version", version)

    def _cluster(self, cluster: int, seen: int) -> ClusterState:
        row = self._db.execute(
            "SELECT name, ignored, looked_at, version FROM clusters WHERE cluster = ?", (cluster,)
        ).fetchone()
        _require_seen(row, seen)
        return ClusterState() if row is None else _cluster_state(row)

    def _region(self, key: RegionKey, seen: int) -> int | None:
        row = self._db.execute(
            "SELECT cluster, version FROM regions WHERE image = ? AND region = ?", key
        ).fetchone()
        _require_seen(row, seen)
        return None if row is None else row[0]

    def _fact(self, key: str) -> Any:
        return _read_fact(self._db, key)

    def _set_fact(self, key: str, value: int) -> None:
        self._db.execute("UPDATE facts SET value = ? WHERE key = ?", (value, key))

    @contextmanager
    def _transaction(self, kind: Literal["IMMEDIATE", "DEFERRED"] = "IMMEDIATE") -> Iterator[None]:
        """All that is read within is of one moment, all that is written is written at once."""
        try:
            self._db.execute(f"BEGIN {kind}")
            yield
            self._db.execute("COMMIT")
        except sqlite3.Error as error:
            raise _broken(self.path, error) from error
        finally:
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")


def read_decisions(path: Path) -> Decisions:
    """The decisions as they stand now; none where there is no such file."""
    if not path.is_file():
        return Decisions()
    try:
        with closing(_open_to_read(path)) as db:
            _require_format(db, path)
            db.execute("BEGIN")  # so that all tables are of one moment
            now = _read_changed(db, 0)
    except sqlite3.Error as error:
        raise _broken(path, error) from error
    return Decisions(
        names={c: state.name for c, state in now.clusters.items() if state.name is not None},
        ignored=frozenset(c for c, state in now.clusters.items() if state.ignored),
        moved={key: cluster for key, cluster in now.regions.items() if cluster is not None},
        looked_at=frozenset(c for c, state in now.clusters.items() if state.looked_at),
    )


def read_heads(path: Path) -> str:
    """The fingerprint of the heads that the decisions of a file are about."""
    try:
        with closing(_open_to_read(path)) as db:
            _require_format(db, path)
            return _read_fact(db, "heads")
    except sqlite3.Error as error:
        raise _broken(path, error) from error


def _open_to_read(path: Path) -> sqlite3.Connection:
    """A connection that works in folders that cannot be written to as well."""
    name = path.resolve().as_uri()
    db = sqlite3.connect(f"{name}?mode=ro", uri=True, timeout=_WAIT_S, isolation_level=None)
    try:
        db.execute("SELECT 1 FROM sqlite_schema")
    except sqlite3.OperationalError:
        db.close()
        if path.with_name(f"{path.name}-wal").exists():
            raise
        # WAL needs a file beside the database; where nobody writes, it can be read without.
        db = sqlite3.connect(f"{name}?immutable=1", uri=True, isolation_level=None)
    return db


def _read_changed(db: sqlite3.Connection, version: int) -> Changed:
    clusters = db.execute(
        "SELECT name, ignored, looked_at, cluster FROM clusters WHERE version > ?", (version,)
    )
    regions = db.execute("SELECT image, region, cluster FROM regions WHERE version > ?", (version,))
    return Changed(
        _read_fact(db, "version"),
        {row[-1]: _cluster_state(row) for row in clusters},
        {(image, region): cluster for image, region, cluster in regions},
    )


def _cluster_state(row: tuple) -> ClusterState:
    return ClusterState(row[0], bool(row[1]), bool(row[2]))


def _require_seen(row: tuple | None, seen: int) -> None:
    if row is not None and row[-1] > seen:
        raise ChangedMeanwhileError("Somebody has changed this meanwhile.")


def _read_fact(db: sqlite3.Connection, key: str) -> Any:
    return db.execute("SELECT value FROM facts WHERE key = ?", (key,)).fetchone()[0]


def _has_tables(db: sqlite3.Connection) -> bool:
    return db.execute("SELECT 1 FROM sqlite_schema WHERE name = 'facts'").fetchone() is not None


def _require_format(db: sqlite3.Connection, path: Path) -> None:
    if not _has_tables(db):
        raise UserError(f"{path}: no decisions in this file; move it away to start anew.")
    found = _read_fact(db, "format")
    if found != _FORMAT:
        raise UserError(
            f"{path}: written by another version of rncdl (format {found}, here {_FORMAT}); "
            "use that version."
        )


def _broken(path: Path, error: sqlite3.Error) -> UserError:
    return UserError(
        f"{path}: cannot be used ({error}). Decisions need a folder on a disk of this machine that "
        "can be written to; if the file is damaged, put a copy of it back."
    )
