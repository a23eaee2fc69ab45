"""Standby copies: versions flow down each subtask's chain and become a running state at a promotion.

Ring 1: files belong to ``disk``, which the simulator replaces. Process: slots. Thread: the standbys' own.
"""
