"""The coordinator's machine of checkpoints, and the order in which output is committed.

Ring 0: pure. Process: driver. Thread: the coordinator's loop.
"""
