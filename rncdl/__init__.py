"""Discover and detect: one detector for the classes you labelled and the classes you did not.

>>> import rncdl
>>> regions = rncdl.load("runs/mine").predict("photo.jpg")  # doctest: +SKIP
"""

from typing import TYPE_CHECKING, Any

from rncdl.errors import UserError
from rncdl.version import __version__

if TYPE_CHECKING:
    from rncdl.prediction.predictor import Predictor, load
    from rncdl.regions import Regions

__all__ = ["Predictor", "Regions", "UserError", "__version__", "load"]

_MODULE_OF = {
    "Predictor": "rncdl.prediction.predictor",
    "Regions": "rncdl.regions",
    "load": "rncdl.prediction.predictor",
}


def __getattr__(name: str) -> Any:
    """The public names that need torch, imported when they are first asked for."""
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_MODULE_OF[name]), name)
