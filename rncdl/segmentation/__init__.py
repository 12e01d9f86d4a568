"""Masks of whatever lies in a box, by methods that know no class."""
