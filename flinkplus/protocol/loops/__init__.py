"""Loops of a job graph: which edges lead back, and when a loop has ended.

Ring 0: pure.
"""
