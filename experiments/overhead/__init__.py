"""Throughput against the interval between checkpoints, for each way of taking them."""
