"""The life cycle of a job: rollbacks, slots, and the limit of restarts.

Ring 0: pure. Process: driver. Thread: the coordinator's loop.
"""
