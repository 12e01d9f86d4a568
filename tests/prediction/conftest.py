"""The detector of the detector's own tests."""

from tests.detector.conftest import tiny_settings

__all__ = ["tiny_settings"]
