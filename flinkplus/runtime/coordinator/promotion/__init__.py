"""Builds promotion orders: the snapshot, the determinants and the channel cursors of each new head.

Ring 1. Process: driver. Thread: the coordinator's loop.
"""
