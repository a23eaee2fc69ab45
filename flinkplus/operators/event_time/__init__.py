"""Operators on event time: watermarks and windows.

Process: driver (descriptors) and slots (instances). Thread: the slot's loop.
"""
