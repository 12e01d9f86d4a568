"""The class-agnostic R-CNN: from an image to regions and their features."""
