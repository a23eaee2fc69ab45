"""``flinkplus check-upgrade``: a program compared with the checkpoints that it would be resumed from.

Ring 2: starts the program. Process: that of the command. Thread: its only one.
"""
