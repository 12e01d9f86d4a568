"""The drawn world: a dataset of scenes made by code alone, with exact boxes and masks."""

from rncdl.data.shapes.world import draw_world

__all__ = ["draw_world"]
