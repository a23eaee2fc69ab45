"""``flinkplus state``: the state in a checkpoint as rows.

Ring 2. Process: a shell's. Thread: the main one.
"""
