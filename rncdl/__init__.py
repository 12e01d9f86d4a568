"""Discover and detect: one detector for the classes you labelled and the classes you did not."""

from rncdl.version import __version__

__all__ = ["__version__"]
