"""Rows given to a function of the user, in the driver: all rows of a checkpoint in one call, once it is complete.

Slots write rows to files in the checkpoint directory, in Arrow's stream format, as those for a database.

Rules and invariants:

- The ID of a batch is the number of its checkpoint. Calls come in ascending order, one at a time.
- What is about to be called is stored before (``BatchCalls.begun``, with the files), and that it has returned is stored
  after. So a call that was under way when the driver died is repeated, with the same ID and the same rows, by the next
  driver, before any other. No earlier call is repeated.
- What was called, or may have been, is not taken back: ``retract_after`` refuses to go back behind it.
- Whatever the function raises is an ``OutputFunctionError``: another exception would end the worker's action without
  an answer, and the job would wait for it forever.
- The function is pickled only with the plan. A slot never unpickles it.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import pyarrow as pa
from pyspark import cloudpickle
from typing_extensions import Self, override

from flinkplus.documents import Document, parse_document
from flinkplus.errors import ConfigurationError, InvariantViolation, OutputFunctionError, described
from flinkplus.operators.base.operator import JsonValue
from flinkplus.operators.base.row import described_cause
from flinkplus.path_names import checked_name
from flinkplus.protocol.program.description import LOCATION
from flinkplus.protocol.snapshot.files import StagedFile
from flinkplus.sinks.base import SinkCommitter, not_yet_committed
from flinkplus.sinks.file_names import PartName, table_staging
from flinkplus.sinks.file_writer import Encoder, FileSink
from flinkplus.sinks.files import OutputFiles
from flinkplus.sinks.staging import LastingCommitter, StagingFolder
from flinkplus.state.durable.runs import CALLS_FOLDER
from flinkplus.state.file_system import Files, open_directory

SCHEME = "foreach_batch:"
"""Before the name of the sink, which is all that its output is known by."""
CALLS_FORMAT = 1
COMPRESSION = "lz4"

BatchFunction = Callable[[pa.Table, int], object]


class DriverFunction:
    """A function that is called in the driver only: its pickle stays a pickle until then."""

    def __init__(self, function: BatchFunction) -> None:
        self._function: BatchFunction | None = function
        self._pickle = b""

    def __getstate__(self) -> dict[str, bytes]:
        return {"pickle": self._pickle or cloudpickle.dumps(self._function)}

    def __setstate__(self, state: dict[str, bytes]) -> None:
        self._function, self._pickle = None, state["pickle"]

    def get(self, sink: str) -> BatchFunction:
        """Raises ``ConfigurationError`` if it cannot be loaded here."""
        if self._function is None:
            try:
                self._function = cloudpickle.loads(self._pickle)
            except Exception as error:  # unpickling runs the user's code
                raise ConfigurationError(
                    f"the function of sink {sink!r} cannot be loaded here ({described(error)}): resume the job with "
                    "its program, or where its modules can be imported"
                ) from error
        assert self._function is not None
        return self._function


@dataclass(frozen=True)
class ForeachBatchSink(FileSink):
    """Calls ``function`` in the driver. ``path``: the checkpoint directory, where rows are staged."""

    suffix: ClassVar[str] = "arrow"
    path: str = ""
    function: DriverFunction = field(default_factory=lambda: DriverFunction(lambda table, batch_id: None))

    @override
    def staged_in(self, checkpoint_dir: str) -> Self:
        return replace(self, path=checkpoint_dir)

    @property
    @override
    def staging(self) -> str:
        if not self.path:
            raise InvariantViolation(f"sink {self.name!r} is used before it knows the checkpoint directory")
        return table_staging(self.job_id, f"{SCHEME}{self.name}")

    @override
    def check_schema(self, schema: pa.Schema) -> None:
        if len(set(schema.names)) < len(schema):
            raise ConfigurationError(f"sink {self.name!r}: a table needs columns with different names")

    @override
    def settings(self) -> Mapping[str, JsonValue]:
        return {LOCATION: f"{SCHEME}{self.name}"}

    @override
    def encoder(self, stream: Any, schema: pa.Schema) -> Encoder:
        return _ArrowEncoder(stream, schema)

    @override
    def committer(self) -> SinkCommitter:
        return BatchCommitter(self.name, self.job_id, self.function.get(self.name), self.path, self.staging)


def foreach_batch_sink(name: str, function: object) -> ForeachBatchSink:
    """See ``Stream.foreach_batch``. Raises ``ConfigurationError``."""
    if not callable(function):
        raise ConfigurationError(f"sink {name!r}: {function!r} is no function of a table and a batch ID")
    return ForeachBatchSink(name, function=DriverFunction(function))


class _ArrowEncoder(Encoder):
    def __init__(self, stream: Any, schema: pa.Schema) -> None:
        self._writer = pa.ipc.new_stream(stream, schema, options=pa.ipc.IpcWriteOptions(compression=COMPRESSION))

    @override
    def write(self, batch: pa.RecordBatch) -> None:
        self._writer.write_batch(batch)

    @override
    def finish(self) -> None:
        self._writer.close()


@dataclass(frozen=True, kw_only=True)
class BatchCalls(Document):
    """What a function was called with, as the checkpoint directory records it.

    ``checkpoint``: calls with all rows up to it have returned. ``begun``: the batch whose call was begun after that;
    0: none. ``files``: of that batch, their names.
    """

    FORMAT: ClassVar[int] = CALLS_FORMAT
    REFUSED: ClassVar[type[Exception]] = OutputFunctionError

    checkpoint: int
    begun: int = 0
    files: tuple[str, ...] = ()

    @override
    def check_names(self) -> None:
        for name in self.files:
            checked_name(name)


class BatchCommitter(LastingCommitter):
    """Calls the function of one sink. ``path``: the checkpoint directory; ``staging``: the folder with its rows."""

    def __init__(self, sink: str, job_id: str, function: BatchFunction, path: str, staging: str) -> None:
        self._sink = sink
        self._function = function
        self._files = OutputFiles(path)
        self._staging = StagingFolder(self._files, staging)
        digest = hashlib.blake2b(sink.encode(), digest_size=8).hexdigest()
        self._record = CallRecord(open_directory(path), f"{CALLS_FOLDER}/{job_id}-{digest}.json")

    @override
    def allow_only_if(self, check: Callable[[], None]) -> None:
        self._files.check = check

    def _store(self, calls: BatchCalls) -> None:
        self._record.write(calls, self._files.check)

    # --- before the first deployment ----------------------------------------------------------------------------------

    @override
    def prepare(self, resume: bool) -> None:
        self._ready(self._known() if resume else BatchCalls(checkpoint=0))

    def _ready(self, calls: BatchCalls) -> None:
        self._store(calls)
        self._staging.make()

    def _known(self) -> BatchCalls:
        found = self._record.read()
        if found is None:
            raise OutputFunctionError(
                f"sink {self._sink!r}: the checkpoint directory does not say with which batches its function was "
                f"called ({self._record.name} is missing)"
            )
        return found

    @override
    def succeed(self, job_id: str | None, checkpoint: int) -> None:
        """The numbers of checkpoints continue, and so do the IDs of batches."""
        self._ready(self._record.read() or BatchCalls(checkpoint=checkpoint))

    # --- while the job runs -------------------------------------------------------------------------------------------

    @override
    def commit(self, checkpoint: int, files: Sequence[StagedFile]) -> None:
        calls = self._known()
        new = not_yet_committed(files, calls.checkpoint)
        begun = [file for file in new if file.name in calls.files]
        if begun and calls.begun != checkpoint:
            self._call(calls, calls.begun, begun)
            calls, new = self._known(), [file for file in new if file not in begun]
        if new:
            self._call(calls, checkpoint, new)
        self._staging.remove_committed(checkpoint, files)

    def _call(self, calls: BatchCalls, batch: int, files: Sequence[StagedFile]) -> None:
        """Call the function with the rows of ``files``, and store that it was called."""
        ordered = sorted(files, key=_order)
        table = pa.concat_tables([self._rows(file) for file in ordered])
        self._store(replace(calls, begun=batch, files=tuple(file.name for file in ordered)))
        try:
            returned = self._function(table, batch)
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt) and threading.current_thread() is threading.main_thread():
                raise  # of the user's keyboard
            raise OutputFunctionError(
                f"sink {self._sink!r}: the function raised for batch {batch} of {table.num_rows} rows: "
                f"{described_cause(error)}"
            ) from error
        self._check_ran(returned)
        self._store(BatchCalls(checkpoint=batch))

    def _check_ran(self, returned: object) -> None:
        """Raises ``OutputFunctionError`` if the call has only made something that would run the function."""
        if isinstance(returned, Coroutine | Generator | AsyncGenerator):
            if isinstance(returned, Coroutine):
                returned.close()  # otherwise Python warns that it was never awaited
            raise OutputFunctionError(
                f"sink {self._sink!r}: the function returned {type(returned).__name__}, so its body has not run: it "
                "must be neither async nor have a yield"
            )

    def _rows(self, file: StagedFile) -> pa.Table:
        """The rows of a staged file. Raises ``OutputFunctionError`` if it is missing or has another size."""
        try:
            content = self._files.read(self._staging.path(file.name))
        except FileNotFoundError:
            content = b""
        if len(content) != file.bytes or not content:
            raise OutputFunctionError(
                f"sink {self._sink!r}: staged file {file.name} of checkpoint {file.checkpoint} is missing in "
                f"{self._files.location!r} or has not the {file.bytes} bytes that were written"
            )
        return pa.ipc.open_stream(content).read_all()

    @override
    def _last_committed(self) -> int:
        calls = self._known()
        return max(calls.checkpoint, calls.begun)

    @override
    def _lasts(self, checkpoint: int, consequence: str) -> OutputFunctionError:
        return OutputFunctionError(
            f"sink {self._sink!r}: its function was called with the rows of checkpoint {checkpoint}, which "
            f"{consequence}"
        )


class CallRecord:
    """The file ``name`` in the checkpoint directory ``directory``; read once, since one driver writes it."""

    def __init__(self, directory: Files, name: str) -> None:
        self._directory = directory
        self.name = name
        self._known: BatchCalls | None = None

    def read(self) -> BatchCalls | None:
        """``None``: nothing was recorded. Raises ``OutputFunctionError`` for a damaged file."""
        if self._known is None:
            try:
                data = self._directory.read(self.name)
            except FileNotFoundError:
                return None
            try:
                self._known = BatchCalls.from_json(parse_document(data))
            except ValueError as error:
                raise OutputFunctionError(f"{self._directory.describe(self.name)} is damaged: {error}") from error
        return self._known

    def write(self, calls: BatchCalls, check: Callable[[], None]) -> None:
        self._known = None  # if this fails, either of the two may be there
        self._directory.write(self.name, json.dumps(calls.to_json()).encode(), check)
        self._known = calls


def _order(file: StagedFile) -> tuple[int, ...]:
    """By subtask; the rows of a subtask in the order in which it wrote them."""
    part = PartName.parse(file.name)
    return (0, file.checkpoint) if part is None else (part.subtask, file.checkpoint, part.generation, part.number)
