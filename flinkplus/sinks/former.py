"""The sinks of the program that a checkpoint is of, by their descriptions: only to commit what it has staged."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from typing_extensions import override

from flinkplus.errors import ConfigurationError
from flinkplus.operators.base.operator import OperatorContext
from flinkplus.protocol.program.description import LOCATION
from flinkplus.sinks.base import Sink, SinkCommitter, SinkWriter
from flinkplus.sinks.file_committer import FileCommitter
from flinkplus.sinks.files import OutputFiles

DATABASE = "postgresql:"


@dataclass(frozen=True)
class FormerFileSink(Sink):
    """A file sink of before. ``path``: its directory."""

    path: str

    @override
    def writer(self, context: OperatorContext, generation: int) -> SinkWriter:
        raise ConfigurationError(f"sink {self.name!r} belongs to the program before, and takes no rows")

    @override
    def committer(self) -> SinkCommitter:
        """Commits and retracts; ``finish`` is for the sinks of the program that runs."""
        return FileCommitter(OutputFiles(self.path), self.job_id, self.name, "", b"")


def former_sink(name: str, settings: dict[str, Any], job_id: str) -> Sink | None:
    """The sink of these settings; ``None`` for one whose output is not known, or can be reached only with the program
    that writes it."""
    where = settings.get(LOCATION)
    return None if where is None or str(where).startswith(DATABASE) else FormerFileSink(name, str(where), job_id=job_id)
