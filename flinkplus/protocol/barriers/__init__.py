"""Barriers of one subtask: the life cycle of a snapshot, alignment, loops, barriers that overtake.

Ring 0: pure. Process: slots. Thread: the slot's loop.
"""
