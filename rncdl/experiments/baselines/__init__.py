"""Systems to compare with, on the same detector and proposals."""
