"""Operators: columnar from end to end; row functions are a convenience on top.

Ring 2: Arrow, users' functions. Process: driver (descriptors) and slots (instances). Thread: the slot's loop.
"""
