"""From images to named regions: locating, one way to classify, detections on disk."""
