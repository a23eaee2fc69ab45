"""Keyed state of several objects for each key.

Ring 2: reads RocksDB. Process: slots. Thread: that of the subtask.
"""
