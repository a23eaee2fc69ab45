"""Batches of a streaming DataFrame, which the driver stages while the job runs.

Ring 2: reads and writes staged files; ``pieces`` is pure. Process: driver (which stages) and slots (readers). Threads:
that of the streaming query; the slot's loop; for each reader one that looks for batches and one that decodes.
"""
