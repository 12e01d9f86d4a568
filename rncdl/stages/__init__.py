"""What each command does: a straight line of calls from files to files."""
