"""Joins of two keyed streams: regular, by time, and of windows.

Ring: 2. Process: slot. Thread: the subtask's; descriptors are made in the driver.
"""
