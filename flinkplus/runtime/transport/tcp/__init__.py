"""Control plane and data plane over TCP, in the loops of slot and coordinator.

Ring 2. Process: driver and slots. Thread: the loops.
"""
