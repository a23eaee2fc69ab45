"""Control messages between slots and the coordinator, and names of subtasks as text.

Ring 1. Process: driver and slots. Thread: the loops.
"""
