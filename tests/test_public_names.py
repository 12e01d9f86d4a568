import subprocess
import sys

import pytest

import rncdl
from tests.pipeline.tiny import environment


def test_importing_the_package_does_not_import_torch():
    said = subprocess.run(
        [sys.executable, "-c", "import rncdl, sys; print('torch' in sys.modules)"],
        env=environment(),
        capture_output=True,
        text=True,
        check=True,
    )
    assert said.stdout.strip() == "False"


def test_every_public_name_is_there():
    for name in rncdl.__all__:
        assert getattr(rncdl, name) is not None


def test_other_names_are_not():
    with pytest.raises(AttributeError, match="no attribute 'lode'"):
        rncdl.lode  # noqa: B018
