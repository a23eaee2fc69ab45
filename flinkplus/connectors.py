"""What a source or a sink of your own is made from: see ``docs/connectors.md``.

``env.from_source`` and ``stream.to_sink`` take them. The contracts are the docstrings of ``flinkplus.sources.base`` and
``flinkplus.sinks.base``.
"""

from flinkplus.errors import ConfigurationError, InputError, InputLost, OutputDirectoryError
from flinkplus.operators.base.operator import JsonValue, OperatorContext
from flinkplus.protocol.snapshot.files import StagedFile
from flinkplus.sinks.base import Sink, SinkCommitter, SinkWriter
from flinkplus.sources.base import LAG_ROWS, MAX_CHOICE, LiveReader, Source, SourceReader

__all__ = [
    "LAG_ROWS",
    "MAX_CHOICE",
    "ConfigurationError",
    "InputError",
    "InputLost",
    "JsonValue",
    "LiveReader",
    "OperatorContext",
    "OutputDirectoryError",
    "Sink",
    "SinkCommitter",
    "SinkWriter",
    "Source",
    "SourceReader",
    "StagedFile",
]
