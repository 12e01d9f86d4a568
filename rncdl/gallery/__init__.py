"""Pictures of what was found: drawings, cluster summaries, and a page that holds them all."""
