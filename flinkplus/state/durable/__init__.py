"""Durable checkpoints: the files of one job's checkpoint directory.

Ring 2: touches file systems. Process: the driver uses all of it; a slot only ``state_files`` and ``prefetched``.
Threads: any.
"""
