"""Loops of a job graph: back edges, and the detection of a loop's end.

Ring 0: pure. Process: slots; the graph also in the driver. Thread: the loops.
"""
