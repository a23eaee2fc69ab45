"""A program that a job is resumed with, compared with the one that its last checkpoint is of.

``blobs/program`` describes the program that was started last: by it a job without a checkpoint is known, and what the
driver had planned for sources is found. A manifest describes the program that took it: so a driver that dies after the
manifest of an upgrade, and before anything else is stored, leaves a checkpoint of the new program, not a mixture.

Rules: nothing is written here but by ``put_program``; nothing of the program before is unpickled.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, ClassVar

from flinkplus.documents import Document, parse_document
from flinkplus.errors import CheckpointDirectoryError, ConfigurationError, CorruptCheckpoint, StateError
from flinkplus.graph import JobGraph, digest_of_plan
from flinkplus.printable import printable
from flinkplus.protocol.program.comparison import Comparison, Requests, compare
from flinkplus.protocol.program.description import FUSED, LOCATION, Program
from flinkplus.protocol.snapshot.manifest import Manifest
from flinkplus.runtime.job import staging
from flinkplus.runtime.job.plan import Plan
from flinkplus.runtime.job.rescaling.former import belongs_to
from flinkplus.sinks.base import Sink
from flinkplus.sources.base import Source
from flinkplus.sources.parquet import StagedParquet
from flinkplus.state.durable.blobs import PROGRAM_BLOB
from flinkplus.state.durable.storage import CheckpointStorage

PROGRAM_FORMAT = 1
NO_CHANGE = Requests()

log = logging.getLogger("flinkplus")


@dataclass(frozen=True, kw_only=True)
class ProgramFile(Document):
    """``blobs/program``. ``job``, ``job_id``: name and ID of the job.

    ``splits``: what the driver has planned for sources, by its digest (``OperatorDescription.split``).
    """

    FORMAT: ClassVar[int] = PROGRAM_FORMAT
    REFUSED: ClassVar[type[Exception]] = CorruptCheckpoint

    job: str
    job_id: str
    program: Program
    splits: dict[str, Any] = field(default_factory=dict)


def read_program(storage: CheckpointStorage, names: Collection[str] | None) -> ProgramFile:
    """The program that was started last in this directory, of a job with one of ``names``; ``None``: of any job.

    Raises ``CheckpointDirectoryError`` for another job, ``CorruptCheckpoint``, ``UntrustedCheckpoint``.
    """
    try:
        found = ProgramFile.from_json(parse_document(storage.blobs.get_signed(PROGRAM_BLOB)))
    except ValueError as error:
        raise CorruptCheckpoint(f"the program in {storage.uri!r} is not JSON: {error}") from error
    except OSError as error:
        why = f"the program in {storage.uri} cannot be read: {error}; check the path"
        raise CheckpointDirectoryError(why) from error
    if names is not None and found.job not in names:
        asked = " or ".join(map(repr, names))
        raise CheckpointDirectoryError(
            f"checkpoint directory {storage.uri!r} belongs to another job (name {printable(found.job)!r}, this job has "
            f"{asked}): check the path; if the job was renamed, give renamed_from={printable(found.job)!r}"
        )
    return found


def put_program(storage: CheckpointStorage, plan: Plan, before: Mapping[str, Any] = MappingProxyType({})) -> None:
    """Store the program of ``plan``, with what was planned ``before`` as well: the last checkpoint may need either."""
    splits = dict(before)
    program = plan.graph.program(plan.options.max_parallelism)
    for node in plan.graph.nodes:
        if isinstance(node.body, Source) and (split := program.operators[node.name].split):
            splits[split] = node.body.split_plan()
    document = ProgramFile(job=plan.name, job_id=plan.output_id, program=program, splits=splits)
    storage.blobs.put_signed(PROGRAM_BLOB, json.dumps(document.to_json(), sort_keys=True).encode())


def compared(manifest: Manifest, program: Program, requests: Requests) -> Comparison:
    """The program of a checkpoint, compared with ``program``."""
    old = program if manifest.program is None else manifest.program
    return compare(old, program, requests, held_in(manifest, old))


def held_in(manifest: Manifest, program: Program) -> set[str]:
    """The operators of which a checkpoint holds state."""
    found = set()
    for vertex in program.vertices:
        names = vertex.split(FUSED)
        for subtask, handle in manifest.subtasks.items():
            if subtask.rpartition("[")[0] == vertex:
                parts = handle.operator_state.operators
                found |= {name for name in names if name in parts and parts[name].state is not None}
                found |= {name for name in names if any(belongs_to(state, name) for state in handle.states)}
    return found


def check_permitted(change: Comparison, where: str) -> Comparison:
    """``change``. Raises ``ConfigurationError`` if it is refused."""
    if change.refused:
        reasons = "; ".join(f"{one.operator!r}: {one.why}" for one in change.refused)
        raise ConfigurationError(
            f"the program does not fit the checkpoints in {where!r}: {reasons} (docs/upgrades.md; dry_run=True shows "
            "the whole comparison)"
        )
    return change


def newest(storage: CheckpointStorage) -> Manifest | None:
    """The manifest of the newest checkpoint that can be read, without looking at its files; ``None``: none is there.

    Raises ``CorruptCheckpoint`` if none can be read, ``UntrustedCheckpoint``.
    """
    failed: CorruptCheckpoint | None = None
    for checkpoint in reversed(storage.manifests.checkpoints()):
        try:
            return storage.manifests.read(checkpoint)
        except CorruptCheckpoint as error:
            failed = failed or error
    if failed is not None:
        raise failed
    return None


def continued_outputs(change: Comparison) -> set[str]:
    """The sinks that may continue an output of the program before. With a savepoint also its directory may have been
    moved: then the sink has kept its name, and writes the same."""
    found = set(change.origins)
    for name, now in change.new.operators.items():
        was = change.old.operators.get(name)
        if now.kind == "sink" and was is not None:
            moved = replace(now, inputs=was.inputs, settings={**now.settings, LOCATION: was.settings.get(LOCATION)})
            found |= {name} if moved == was else set()
    return found


def with_moved_input(program: Program, splits: Mapping[str, Any], directory: str) -> tuple[Program, dict[str, Any]]:
    """A program of a savepoint, and what was planned for its sources, with the staged input below ``directory``.

    Raises ``CorruptCheckpoint``.
    """
    operators, found = dict(program.operators), dict(splits)
    for name, known in program.operators.items():
        if known.body == StagedParquet.__name__ and known.split:
            try:
                plan = staging.moved(splits[known.split], directory)
            except (KeyError, TypeError, ValueError) as error:
                raise CorruptCheckpoint(f"what was planned for source {name!r} is missing or damaged") from error
            operators[name] = replace(known, split=digest_of_plan(plan))
            found[operators[name].split] = plan
    return replace(program, operators=operators), found


def adopt_splits(graph: JobGraph, change: Comparison, splits: Mapping[str, Any]) -> set[str]:
    """Give the sources that go on what was planned for them; returns the names of those that need no new plan. Raises
    ``CorruptCheckpoint``."""
    going_on = set()
    for node in graph.nodes:
        origin = change.origins.get(node.name)
        if not isinstance(node.body, Source) or origin is None:
            continue
        split = change.old.operators[origin].split
        if split:
            going_on.add(node.name)
            try:
                node.body = node.body.with_split_plan(splits[split])
            except (KeyError, TypeError, ValueError) as error:
                raise CorruptCheckpoint(f"what was planned for source {node.name!r} is missing or damaged") from error
    return going_on


def bind_sinks(graph: JobGraph, job_id: str) -> None:
    """Sinks write for the job that is resumed."""
    for node in graph.nodes:
        if isinstance(node.body, Sink):
            node.body = node.body.bind(node.schema, job_id)


def stage_in(graph: JobGraph, checkpoint_dir: str) -> None:
    """Sinks without a directory of their own stage their output in the checkpoint directory."""
    for node in graph.nodes:
        if isinstance(node.body, Sink):
            node.body = node.body.staged_in(checkpoint_dir)


def place_sources(graph: JobGraph, storage: CheckpointStorage) -> None:
    """Sources keep what they plan while the job runs in its checkpoint directory, signed with its key."""
    key = storage.signed.key
    assert key is not None, "the driver of a job has a key"
    for node in graph.nodes:
        if isinstance(node.body, Source):
            node.body = node.body.placed(storage.uri, key)


def sign_sources_again(graph: JobGraph) -> None:
    """Sign what placed sources have kept, which another key has signed and the user trusts. Raises ``StateError``."""
    for node in graph.nodes:
        if isinstance(node.body, Source):
            try:
                node.body.sign_again()
            except OSError as error:
                raise StateError(f"what source {node.name!r} has planned cannot be signed: {error}") from error
