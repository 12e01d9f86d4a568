"""`rncdl name` on runs that were really made."""

import io
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from rncdl.errors import UserError
from rncdl.naming import deciding
from rncdl.naming.server import Served
from rncdl.run_folder import RunFolder
from rncdl.stages.name import PageAddress, name_clusters, open_served

CLUSTERS = range(8)


@pytest.fixture
def run(discovered: Path, tmp_path: Path) -> RunFolder:
    """A copy of the run with two discoveries of the same heads: `main` and `again`."""
    shutil.copytree(discovered, tmp_path / "run")
    discoveries = tmp_path / "run" / "discoveries"
    shutil.copytree(discoveries / "main", discoveries / "again")
    return RunFolder(tmp_path / "run")


def name_two(served: Served) -> tuple[int, int]:
    """Name the largest cluster and ignore the next; which these were."""
    members = served.board.membership
    order = sorted(CLUSTERS, key=lambda c: -len(members.rows_of_cluster(c)))
    deciding.name_clusters(served.board, [order[0]], "mug", merge=False, seen=0)
    deciding.ignore_clusters(served.board, [order[1]], ignored=True, seen=0)
    return order[0], order[1]


def test_a_new_discovery_is_offered_what_was_decided_and_nothing_is_applied(run: RunFolder):
    first = open_served(run, "main", 0)
    mug, ignored = name_two(first)
    first.board.store.close()
    second = open_served(run, "again", 0)
    offered = second.board.open_suggestions()
    assert {c: one.name for c, one in offered.items()} == {mug: "mug", ignored: None}
    assert all(one.shared == one.size == one.class_size for one in offered.values())
    assert second.board.state(mug).name is None
    second.board.store.close()


def test_another_run_may_lend_its_names(run: RunFolder, discovered: Path, tmp_path: Path):
    first = open_served(run, "main", 0)
    mug, ignored = name_two(first)
    first.board.store.close()
    shutil.copytree(discovered, tmp_path / "other")
    other = open_served(RunFolder(tmp_path / "other"), "main", 0, names_from=run.path)
    assert set(other.board.open_suggestions()) == {mug, ignored}
    other.board.store.close()


def test_decisions_whose_regions_were_not_kept_are_told_of(run: RunFolder, capsys):
    first = open_served(run, "main", 0)
    name_two(first)
    first.board.store.close()
    shutil.rmtree(run.discovery("main").membership_dir(0))
    second = open_served(run, "again", 0)
    assert second.board.open_suggestions() == {}
    assert "rncdl name --run" in capsys.readouterr().err
    second.board.store.close()


def test_a_run_without_names_to_lend_is_refused(run: RunFolder, tmp_path: Path):
    with pytest.raises(UserError, match="--names-from"):
        name_clusters(
            run.path,
            discovery=None,
            head=0,
            names_from=tmp_path / "nothing",
            address=PageAddress(browser=False),
        )


def test_masks_lie_over_the_whole_photograph_and_within_their_boxes(run: RunFolder):
    served = open_served(run, "main", 0)
    members = served.board.membership
    for row in range(0, 40, 4):
        key = members.key_of(row)
        picture = _open(served.pictures.mask(key))
        photograph = _open(served.pictures.photograph(key[0]))
        assert picture.size == photograph.size
        drawn = np.asarray(picture)[..., 3] > 0
        x0, y0, x1, y1 = members.boxes_xyxy[row]
        rows, columns = np.nonzero(drawn)
        assert np.all((columns >= x0 - 1) & (columns <= x1) & (rows >= y0 - 1) & (rows <= y1))
    served.board.store.close()


def _open(content: bytes | None) -> Image.Image:
    assert content is not None
    return Image.open(io.BytesIO(content))
