"""Sinks: output that becomes visible when the checkpoint that covers it is complete, all at once, and only once."""
