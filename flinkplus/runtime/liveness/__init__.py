"""Signs of life: the lifeline that the system cuts when a process dies, and pulses that stop when a host hangs.

Ring 2. Process: driver and slots. Thread: the loops; the pulse is sent by a process of its own.
"""
