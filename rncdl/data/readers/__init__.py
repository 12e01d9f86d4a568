"""Datasets in the formats of other tools, converted to what a COCO file would hold."""
