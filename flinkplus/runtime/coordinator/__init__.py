"""The coordinator: the driver-side end of a job, which runs the machines of the protocol and carries out their effects.

Ring 1 and 2. Process: driver. Thread: the coordinator's loop.
"""
