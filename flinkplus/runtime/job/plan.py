"""The plan of a job: stored in its checkpoint directory, so that the job can be resumed.

The file is a line with the format's number, then a pickle, which another version may not be able to load.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

from pyspark import cloudpickle

from flinkplus.config import Options
from flinkplus.errors import CheckpointDirectoryError, ConfigurationError, described
from flinkplus.graph import JobGraph
from flinkplus.path_names import checked_name
from flinkplus.printable import printable
from flinkplus.runtime.job.signing import find_key
from flinkplus.state.durable.blobs import PLAN_BLOB
from flinkplus.state.durable.storage import CheckpointStorage

PLAN_FORMAT = 3
MAGIC = b"flinkplus plan "
HEADER = MAGIC + b"%d" % PLAN_FORMAT


@dataclass(frozen=True)
class Plan:
    """A job as it was started. ``output_id``: its ID, also in all later runs."""

    name: str
    output_id: str
    graph: JobGraph
    options: Options


def plan_bytes(plan: Plan) -> bytes:
    return HEADER + b"\n" + cloudpickle.dumps(plan)


def pickled_plan(storage: CheckpointStorage, where: str) -> bytes:
    """The pickle of the plan, with its signature and format checked. ``where``: the directory, for errors.

    Raises ``CheckpointDirectoryError`` if it is unreadable or has another format, ``UntrustedCheckpoint`` without a
    valid signature.
    """
    try:
        data = storage.blobs.get_signed(PLAN_BLOB)
    except OSError as error:
        raise CheckpointDirectoryError(f"the plan in {where} cannot be read: {error}; check the path") from error
    header, _, pickled = data.partition(b"\n")
    if header != HEADER:
        found = header.removeprefix(MAGIC).decode(errors="replace") if header.startswith(MAGIC) else "older than that"
        raise CheckpointDirectoryError(
            f"the format of the plan in {where} is {printable(found)}, and this version reads {PLAN_FORMAT}: resume "
            "the job with the version that wrote it, or start it with another checkpoint directory"
        )
    return pickled


def load_plan(storage: CheckpointStorage, where: str) -> Plan:
    """Read the plan. Raises as ``pickled_plan``, and ``ConfigurationError`` when the job's functions cannot be loaded
    here."""
    pickled = pickled_plan(storage, where)
    try:
        plan = cloudpickle.loads(pickled)
    except ModuleNotFoundError as error:
        raise ConfigurationError(
            f"the functions of the job in {where} need a Python module that is not found here ({error}): resume it "
            "where that can be imported, for example with PYTHONPATH=DIRECTORY"
        ) from error
    except Exception as error:  # unpickling runs the user's code
        raise ConfigurationError(
            f"the functions of the job in {where} cannot be loaded here ({described(error)}): resume it "
            "with the program and the versions that it was started with"
        ) from error
    if not isinstance(plan, Plan):
        raise CheckpointDirectoryError(f"the file in {where} is not a plan: it holds {printable(type(plan).__name__)}")
    storage.signed.job_id = checked_name(plan.output_id)
    return plan


@dataclass(frozen=True)
class FoundJob:
    """A job that can be resumed: its checkpoint directory and its plan."""

    checkpoint_dir: str
    storage: CheckpointStorage
    plan: Plan


def find_job(
    checkpoint_dir: str,
    signing_key: str | os.PathLike[str] | None = None,
    trust: bool = False,
    name: str | None = None,
) -> FoundJob:
    """The job that ``checkpoint_dir`` belongs to.

    ``trust``: accept a plan that another key has signed.
    ``name``: the expected name of the job; ``None``: any.
    Raises as ``load_plan``, and ``CheckpointDirectoryError`` for a directory without a job, or of another job.
    """
    storage = CheckpointStorage(checkpoint_dir, trust=trust)
    storage.runs.look()
    key_file = None if signing_key is None else os.fspath(signing_key)
    found = storage.ownership.job(lambda: find_key(key_file, checkpoint_dir, make=trust)).get("name")
    if name is not None and found != name:
        raise CheckpointDirectoryError(
            f"checkpoint directory {checkpoint_dir!r} belongs to job {printable(found)}, not to {name!r}; check the "
            "path, and who can write there"
        )
    return FoundJob(checkpoint_dir, storage, load_plan(storage, checkpoint_dir))


def identity_of(name: str, graph: JobGraph, options: Options) -> dict[str, Any]:
    """The identity of a job, as its checkpoint directory records it."""
    groups = options.max_parallelism
    return {"name": name, "fingerprint": graph.fingerprint(groups), "shape": graph.shape(groups)}
