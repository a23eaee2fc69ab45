"""Descriptions of a snapshot outside its subtask: the handle, and the manifest of a checkpoint.

Ring 0: pure. Process: driver and slots. Thread: any.
"""
