"""Decides one thing after another and says each number once it is written, until it is killed."""

import sys
from pathlib import Path

from rncdl.naming.edits import ClusterState, Edit
from rncdl.naming.store import DecisionStore


def edit_of(step: int) -> Edit:
    """A decision about many rows, of which a killed process must leave all or none."""
    state = ClusterState(f"name {step}", looked_at=True)
    return Edit(
        f"step {step}",
        dict.fromkeys(range(20), state),
        {(step % 7, region): step for region in range(50)},
    )


def main() -> None:
    with DecisionStore(Path(sys.argv[1]), num_clusters=20, heads="h") as store:
        step = int(sys.argv[2])
        while True:
            step += 1
            if step % 5 == 0:
                store.undo()
                store.redo()
            line = store.decide(edit_of(step))
            sys.stdout.write(f"{line} {step}\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
