"""Operators whose functions ask something outside of the job, and the answers, which are stored before they count.

Process: driver (descriptors) and slots (instances). Threads: the slot's loop; for each instance one that calls
(``caller``), one that stores answers (``recorder``), and those of plain functions.
"""
