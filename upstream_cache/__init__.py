"""Output logs: what a producer keeps of each channel so that it can be sent, held back, and sent again."""

from upstream_cache.log import LogFull, OutputLog

__all__ = ["LogFull", "OutputLog"]
