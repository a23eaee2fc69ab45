"""``flinkplus supervise``: runs a program as a driver, and starts it again when it dies.

Ring 2. Process: the supervisor's; ``prepared`` is the driver's. Thread: the main one.
"""
