"""What every training loop needs: schedule, checkpoints, processes, progress."""
