"""The ``flinkplus`` command."""
