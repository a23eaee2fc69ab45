"""Operators without state on rows: map, filter, flat map, tokenize, union, the head of a loop.

Process: driver (descriptors) and slots (instances). Thread: the slot's loop.
"""
