"""One running subtask: its operators, its output channels, its pace.

Ring 2. Process: slots. Thread: the slot's loop.
"""
