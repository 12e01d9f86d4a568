"""Discover and detect: one detector for the classes you labelled and the classes you did not.

>>> import rncdl
>>> run = rncdl.train("runs/mine", "labels.json", images="photos/")  # doctest: +SKIP
>>> rncdl.discover(run, "more_photos/", settings={"discover.heads": [200]})  # doctest: +SKIP
>>> regions = rncdl.load(run).predict("photo.jpg")  # doctest: +SKIP

The names in `__all__` are the API; docs/python.md shows each of them. Everything else may change.
"""

from typing import TYPE_CHECKING, Any

from rncdl.errors import UserError
from rncdl.version import __version__ as __version__

if TYPE_CHECKING:
    from rncdl.api import clusters, discover, evaluate, export, train
    from rncdl.gallery.cluster_records import Cluster
    from rncdl.prediction.predictor import Predictor, load
    from rncdl.regions import Regions

__all__ = [
    "Cluster",
    "Predictor",
    "Regions",
    "UserError",
    "clusters",
    "discover",
    "evaluate",
    "export",
    "load",
    "train",
]

_MODULE_OF = {
    "Cluster": "rncdl.gallery.cluster_records",
    "Predictor": "rncdl.prediction.predictor",
    "Regions": "rncdl.regions",
    "clusters": "rncdl.api",
    "discover": "rncdl.api",
    "evaluate": "rncdl.api",
    "export": "rncdl.api",
    "load": "rncdl.prediction.predictor",
    "train": "rncdl.api",
}


def __getattr__(name: str) -> Any:
    """The public names that need torch, imported when they are first asked for."""
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_MODULE_OF[name]), name)


def __dir__() -> list[str]:
    """With the names that are not imported yet, so that `help` and completion show them."""
    return sorted({*globals(), *__all__})
