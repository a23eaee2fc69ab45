"""Fault injection: SIGKILL at a named point, and faults on request while a job runs.

Ring 2. Process: slots. Thread: the slot's loop.
"""
