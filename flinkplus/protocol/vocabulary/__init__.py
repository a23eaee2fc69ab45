"""Types common to all machines: identifiers, messages, events, effects, limits, ancestry of subtasks.

Ring 0: pure. Process: driver and slots. Thread: any.
"""
