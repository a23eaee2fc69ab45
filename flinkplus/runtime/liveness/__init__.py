"""Failure detection: the lifeline, which the system cuts when a process dies, and pulses, which stop when a host hangs.

Ring 2. Process: driver and slots. Thread: the loops; the pulse is sent by a process of its own.
"""
