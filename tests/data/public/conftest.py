from pathlib import Path

import pytest

from tests.data.public.made_up import write_public_files


@pytest.fixture
def downloads(tmp_path: Path) -> Path:
    """A folder with coco, lvis, vg and authors, as downloaded."""
    write_public_files(tmp_path / "downloads")
    return tmp_path / "downloads"
