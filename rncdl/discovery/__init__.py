"""The second phase: heads that tell known classes and clusters apart."""
