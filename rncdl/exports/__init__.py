"""Detections in the formats of other tools: one stream of images in, one writer per format."""
