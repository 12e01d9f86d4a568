"""Settings that fit the data and the machine, and what they will cost."""
