"""The ``flinkplus`` command.

Ring 2. Process: the shell's, which is the driver of a job that it starts. Thread: the main one.
"""

from flinkplus.shadows import COMMANDS, check_packages

check_packages(COMMANDS)
