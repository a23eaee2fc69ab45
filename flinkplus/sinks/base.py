"""What a sink is: a picklable descriptor, per subtask a writer, and in the driver one committer. Two phases.

1. *Stage.* A writer takes batches; at a snapshot it sets aside what it has and describes it (``stage``); beside the
   stream that is finished (``settle``). The descriptions travel with the snapshot into the checkpoint's manifest. What
   is staged is invisible to readers.
2. *Commit.* When the checkpoint is complete (its manifest is stored) the committer makes everything it describes
   visible, atomically.

Rules:

- A writer describes at every snapshot *all* it has staged that it does not know to be part of a complete checkpoint.
  So the next checkpoint carries what a declined or aborted one had staged.
- A description carries the checkpoint at whose snapshot it was made. Commits come in ascending order of checkpoints,
  one at a time; checkpoint ids are never reused. So all files up to the last committed checkpoint are committed, and
  no later ones: a committer remembers only that number.
- ``commit`` may be repeated, also by another process after a crash at any point of it, and then finishes what is left.
- Before a subtask is deployed again, every complete checkpoint is committed: a writer begins with nothing staged. The
  writer of a promoted standby adopts what its version describes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

import pyarrow as pa
from typing_extensions import Self

from flinkplus.errors import ConfigurationError, InvariantViolation
from flinkplus.operators.base.operator import JsonValue, OperatorContext
from flinkplus.protocol.determinants.recipe import RecipeEntry, StoredOutput
from flinkplus.protocol.snapshot.files import StagedFile


class SinkWriter(ABC):
    """The sink in one subtask; used by one thread, except for ``settle``. After an exception it can only be closed."""

    @abstractmethod
    def write(self, batch: pa.RecordBatch) -> None:
        """Take the rows of ``batch``, whose columns may be dictionary-encoded."""

    @abstractmethod
    def stage(self, checkpoint: int) -> list[StagedFile]:
        """Set aside what is open for this checkpoint; describe all that is staged and not known to be complete.

        The stream waits for it: leave what takes long to ``settle``.
        """

    def settle(self, staged: Sequence[StagedFile]) -> list[StagedFile]:
        """Finish what ``stage`` has set aside; return what it described (``staged``, or a copy) with all details.

        Called before a snapshot counts, in another thread, one call after the other. Leaves out what is known to be
        complete. Raises ``OSError``; the next call raises it as well.
        """
        return list(staged)

    @abstractmethod
    def checkpoint_complete(self, checkpoint: int) -> None:
        """What was staged up to this checkpoint need not be described again."""

    @abstractmethod
    def adopt(self, staged: Sequence[StagedFile]) -> None:
        """Begin as the successor of a writer that had described ``staged``: describe it again, until it is complete."""

    def close(self) -> None:
        """Remove what is open; what is staged, or set aside, stays. Called once, also after a failure."""
        return None


class SinkCommitter(ABC):
    """The sink in the driver; used by one thread at a time.

    All methods may be repeated after a failure. That may help after an ``OSError``, and not after an
    ``OutputDirectoryError``: the directory cannot be used, or a staged file has gone.
    """

    def allow_only_if(self, check: Callable[[], None]) -> None:
        """From now on nothing outside of this process is changed without ``check``, which raises if it must not be."""
        return None

    def prepare(self, resume: bool) -> None:
        """Make the output ready before the first deployment.

        Raises ``OutputDirectoryError`` when there is data already, or, with ``resume``, not this job's output.
        """
        return None

    def check_successor(self, job_id: str | None, checkpoint: int) -> None:
        """Raises ``OutputDirectoryError`` if ``succeed`` would. Changes nothing."""
        return None

    def succeed(self, job_id: str | None, checkpoint: int) -> None:
        """As ``prepare``, for a new job that continues from ``checkpoint`` of the job ``job_id``. May be repeated.

        Where that job's output is, the new job takes it over, and from then on the old one can commit nothing. Raises
        ``OutputDirectoryError`` when output after ``checkpoint`` is visible there, or there is other data. ``job_id``
        is ``None`` for an output that the old job did not have: it begins.
        """
        self.prepare(resume=False)

    @abstractmethod
    def commit(self, checkpoint: int, files: Sequence[StagedFile]) -> None:
        """Make visible what ``files``, the descriptions of all subtasks, hold beyond the last commit."""

    @abstractmethod
    def retract_after(self, checkpoint: int | None) -> None:
        """Take back all that was staged after ``checkpoint`` (``None``: everything), committed or not."""

    def finish(self) -> None:
        """The last commit is done and no writer lives: remove what only the running job needs."""
        return None

    def discard(self) -> None:
        """The job ended otherwise, all complete checkpoints are committed: remove what is staged. It may be resumed."""
        return None

    def close(self) -> None:
        """It is not used again in this process: give back what it keeps open. Any thread may call it."""
        return None


@dataclass(frozen=True)
class Sink(ABC):
    """The descriptor; usable after ``bind``. ``name`` is the operator's, unique in the job.

    ``keeps_recipe``: its rows are visible at once; its writer is a ``RecipeWriter``, its committer a ``RecipeKeeper``.
    """

    keeps_recipe: ClassVar[bool] = False

    name: str
    schema: pa.Schema | None = field(default=None, kw_only=True)
    job_id: str = field(default="", kw_only=True)

    def bind(self, schema: pa.Schema, job_id: str) -> Self:
        """A copy for one job. ``schema`` is the logical one of its input; ``job_id`` is unique and survives a resume.

        Raises ``ConfigurationError`` when the sink cannot store such columns.
        """
        if not job_id or not all(c.isalnum() or c in "-_." for c in job_id) or job_id.startswith("."):
            raise ConfigurationError(f"job id {job_id!r} must be letters, digits, '-', '_' or '.'")
        self.check_schema(schema)
        return replace(self, schema=schema, job_id=job_id)

    @property
    def bound_schema(self) -> pa.Schema:
        """The schema given to ``bind``."""
        if self.schema is None:
            raise InvariantViolation(f"sink {self.name!r} is used before it was bound to a job")
        return self.schema

    def secrets(self) -> Mapping[str, str]:
        """What slots need to write, and no pickle of the sink has; shipped with their credentials."""
        return {}

    def with_secrets(self, secrets: Mapping[str, str]) -> Self:
        """A copy with what ``secrets`` gave, in a slot."""
        return self

    def staged_in(self, checkpoint_dir: str) -> Self:
        """A copy for one run of the job, for a sink that stages its output in the checkpoint directory."""
        return self

    def check_schema(self, schema: pa.Schema) -> None:
        """Raises ``ConfigurationError`` when rows of ``schema`` cannot be stored."""
        return None

    def settings(self) -> Mapping[str, JsonValue]:
        """Where and how it writes, with ``location``; nothing for a sink that is known by its name alone. JSON."""
        return {}

    @abstractmethod
    def writer(self, context: OperatorContext, generation: int) -> SinkWriter:
        """The writer of one subtask, in one deployment of it."""

    @abstractmethod
    def committer(self) -> SinkCommitter:
        """The committer, in the driver."""


class RecipeWriter(SinkWriter):
    """A writer whose rows are visible at once, each with its recipe (``protocol.determinants.recipe``).

    ``write`` takes the rows of a step, then ``cut`` or ``repeated`` comes. After ``stage`` comes the cut of a barrier.
    """

    @property
    @abstractmethod
    def accepts(self) -> bool:
        """See ``RecipePort``."""

    @abstractmethod
    def cut(self, step: int, entry: RecipeEntry) -> None:
        """See ``RecipePort``."""

    @abstractmethod
    def repeated(self, step: int) -> None:
        """See ``RecipePort``."""

    @abstractmethod
    def settled(self, checkpoint: int) -> JsonValue:
        """Its part of a snapshot, when all cuts up to the barrier of ``checkpoint`` are stored. In another thread.
        Raises ``OutputUnavailable`` if that takes too long."""

    @abstractmethod
    def restore(self, state: JsonValue) -> None:
        """Take back what ``settled`` gave; before ``begin``."""

    @abstractmethod
    def begin(self, recorded: int, woken: Callable[[Exception | None], None], has_successors: bool = False) -> None:
        """Begin to store rows: those up to step ``recorded`` are there. ``woken``: called in another thread when there
        is room again, or with an error that ends the subtask. ``has_successors``: this process may have to take over
        other subtasks of the sink while the job runs."""


class RecipeKeeper(SinkCommitter):
    """A committer whose sink keeps recipes."""

    @abstractmethod
    def fence(
        self, generation: int, subtasks: Collection[int], parallelism: int, patience_s: float
    ) -> Mapping[int, StoredOutput]:
        """Refuse all transactions of ``subtasks``, by index, of generations before ``generation`` from now on. Returns
        what is stored of each. Raises ``OutputUnavailable`` after ``patience_s`` seconds, and ``OutputTableError`` if
        another ``parallelism`` has written."""


def not_yet_committed(files: Iterable[StagedFile], committed_through: int) -> list[StagedFile]:
    """The files that no commit up to ``committed_through`` has made visible, ordered by name (see the rules above)."""
    return sorted((f for f in files if f.checkpoint > committed_through), key=lambda f: f.name)
