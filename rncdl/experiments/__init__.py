"""Configurations times seeds to results: baselines, and the tables of compare and ablate."""
