"""What every process of a job needs: the clock, logs, the inbox of a loop, the gRPC thread, the note of a step.

Ring 2. Process: driver and slots. Thread: any.
"""
