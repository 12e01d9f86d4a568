"""The small bank and the heads that the gallery is tested with."""

from tests.gallery.conftest import bank, heads

__all__ = ["bank", "heads"]
