"""Operators with a state for each key: aggregates, reduce, process, deduplicate, top, timers.

Process: driver (descriptors) and slots (instances). Thread: the slot's loop.
"""
