"""From detections and clusters to the numbers of the tables."""
