"""What people decided about clusters, and the page on which they do."""
