"""A long run under failures: one job, a random fault every few seconds, and everything as it was after each."""
