"""What a promoted subtask is given: its snapshot, its determinants, where its channels resume.

Ring 1. Process: driver. Thread: the coordinator's loop.
"""
