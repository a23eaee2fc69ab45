"""Operators on event time: watermarks, windows, the interval join.

Process: driver (descriptors) and slots (instances). Thread: the slot's loop.
"""
