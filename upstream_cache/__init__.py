"""Output logs: what a producer keeps of each channel so that it can be sent, held back, and sent again.

Ring 2: writes files; imports nothing of the project. Process: slots. Thread: the slot's loop.
"""

from upstream_cache.log import LogFull, OutputLog
from upstream_cache.retention import Codec, Retention
from upstream_cache.segments import CorruptSegment

__all__ = ["Codec", "CorruptSegment", "LogFull", "OutputLog", "Retention"]
