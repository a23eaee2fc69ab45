"""Streams: what a program draws a job with.

Process: driver. Thread: the user's.
"""
