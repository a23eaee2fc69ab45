"""The ``flinkplus`` command."""

from flinkplus.shadows import COMMANDS, check_packages

check_packages(COMMANDS)
