"""Rows that are visible at once, wherever they are stored: the writer of a subtask, and what it needs of a far end.

Ring 2. Process: the slot's. Thread: the slot's loop hands over, a thread for each writer stores.
"""
