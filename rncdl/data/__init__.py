"""Datasets: annotation files, images, views of them, and the drawn world."""
