"""What is recorded of a running job: recoveries with the time of each phase, status, the machines' inputs.

Ring 1. Process: driver. Thread: the coordinator's loop; readers in any.
"""
