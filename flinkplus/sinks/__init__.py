"""Sinks: output that becomes visible when the checkpoint that covers it is complete, all at once, and only once.

Ring 2: touches file systems. Process: slots (writers) and driver (committers). Thread: the slot's loop (``settle``: its
snapshot pool); in the driver one at a time.
"""
