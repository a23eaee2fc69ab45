"""Sources: bounded or unbounded inputs that can be read again from a recorded position.

Ring 2: reads files, calls users' functions. Process: driver (descriptors) and slots (readers). Thread: the slot's loop.
"""
