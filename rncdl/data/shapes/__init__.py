"""The drawn world: a dataset of scenes made by code alone, with exact boxes and masks."""

from rncdl.data.shapes.world import World, draw_world

__all__ = ["World", "draw_world"]
