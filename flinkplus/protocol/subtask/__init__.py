"""The steps of one subtask: which messages it takes, what a step does, what a promoted successor repeats.

Ring 0: pure. Process: slots. Thread: the slot's loop.
"""
