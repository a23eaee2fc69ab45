"""What describes a snapshot outside of its subtask: its handle, and the manifest of a checkpoint.

Ring 0: pure. Process: driver and slots.
"""
