"""Barriers of one subtask: the life of a snapshot, alignment, loops, barriers that overtake.

Ring 0: pure.
"""
