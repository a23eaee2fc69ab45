"""Which slots are there, spare slots, planned moves.

Ring 2. Process: driver. Thread: the coordinator's loop.
"""
