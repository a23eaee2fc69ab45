"""``StreamEnvironment``: from a SparkSession to a running job.

Rules: the session belongs to the user, and its settings are not changed. An option that is not given comes from
``spark.flinkplus.*`` of the session's configuration, then from the defaults. ``execute`` may be called once.
"""

from __future__ import annotations

import logging
import os
import uuid
from collections.abc import Collection, Mapping
from typing import Literal, overload

from pyspark import cloudpickle
from pyspark.sql import DataFrame, SparkSession
from typing_extensions import Unpack

from flinkplus.api.callers import names_callers_line
from flinkplus.api.dry_run import check_upgrade
from flinkplus.api.job import JobHandle
from flinkplus.api.sources import EnvironmentSources
from flinkplus.api.upgrades import Upgrade, asked_by_command, hand_over, requests_of
from flinkplus.config import options_from
from flinkplus.errors import ConfigurationError
from flinkplus.graph import JobGraph
from flinkplus.job_options import JobOptions, RunOptions
from flinkplus.runtime.job.plan import find_job
from flinkplus.runtime.job.savepoints import has_checkpoints, resume_found, start_drawn
from flinkplus.runtime.job.start import start_job
from flinkplus.state.durable.ownership import Resume

log = logging.getLogger("flinkplus")


@names_callers_line
class StreamEnvironment(EnvironmentSources):
    """Draws one job on a SparkSession and runs it. The options are those of ``flinkplus.JobOptions``.

    Raises ``ConfigurationError`` for an invalid option.
    """

    def __init__(self, spark: SparkSession, **options: Unpack[JobOptions]) -> None:
        conf = dict(spark.sparkContext.getConf().getAll())
        self.spark = spark
        self.options = options_from(conf, options)
        self.graph = JobGraph()
        self.output_id = f"job-{uuid.uuid4().hex[:12]}"
        self._frames: dict[str, DataFrame] = {}
        self._counts: dict[str, int] = {}
        self._executed = False

    def __repr__(self) -> str:
        names = ", ".join(node.name for node in self.graph.nodes) or "nothing drawn"
        state = "executed" if self._executed else "not executed"
        return f"<StreamEnvironment: {names}; parallelism {self.options.parallelism}; {state}>"

    def name_for(self, kind: str, name: str | None) -> str:
        """As ``Drawing.name_for``."""
        if name is not None:
            return name
        taken = {node.name for node in self.graph.nodes}
        number = self._counts.get(kind, 0) + 1
        while (made := kind if number == 1 else f"{kind}-{number}") in taken:
            number += 1
        self._counts[kind] = number
        return made

    def throttle(self, origins: tuple[int, ...], rows_per_s: float) -> None:
        """As ``Drawing.throttle``. Raises ``ConfigurationError`` unless the only origin is fused with its source."""
        node = origins[0]
        vertex = next(v for v in self.graph.fuse_draft() if node in v.nodes)
        if not vertex.is_source or len(origins) > 1:
            raise ConfigurationError("throttle must stand before the first key_by or union, fused with its source")
        if any(self.graph.nodes[i].rate is not None for i in vertex.nodes):
            raise ConfigurationError(f"{vertex.name!r} is throttled already")
        self.graph.nodes[node].rate = rows_per_s

    @overload
    def execute(
        self,
        name: str,
        *,
        resume: Resume = ...,
        trust: bool = ...,
        start_from: str | os.PathLike[str] | None = ...,
        state_from: Mapping[str, str] | None = ...,
        drop_state: Collection[str] = ...,
        renamed_from: str | None = ...,
        dry_run: Literal[False] = ...,
    ) -> JobHandle: ...

    @overload
    def execute(
        self,
        name: str,
        *,
        resume: Resume = ...,
        trust: bool = ...,
        start_from: str | os.PathLike[str] | None = ...,
        state_from: Mapping[str, str] | None = ...,
        drop_state: Collection[str] = ...,
        renamed_from: str | None = ...,
        dry_run: Literal[True],
    ) -> Upgrade: ...

    def execute(
        self,
        name: str,
        *,
        resume: Resume = False,
        trust: bool = False,
        start_from: str | os.PathLike[str] | None = None,
        state_from: Mapping[str, str] | None = None,
        drop_state: Collection[str] = (),
        renamed_from: str | None = None,
        dry_run: bool = False,
    ) -> JobHandle | Upgrade:
        """Start the job; returns its handle at once.

        ``resume``: ``False`` starts a new job; ``True`` resumes from the last complete checkpoint in
        ``checkpoint_dir``; ``"auto"`` starts a job without a checkpoint and resumes any other. For a finished job it
        returns a handle in state ``finished`` and runs nothing, so the same command can be repeated until it succeeds.
        ``trust``: also resume a job that was signed with another key, which runs its author's code
        (``docs/security.md``).
        ``start_from``: a savepoint (``JobHandle.savepoint``) that the new job begins with. The job has a
        ``checkpoint_dir`` of its own, and the savepoint is only read. With ``resume="auto"``: unless there are
        checkpoints in ``checkpoint_dir``.

        A job may be resumed, or started from a savepoint, with another program (``docs/upgrades.md``):
        ``state_from``: operator -> the name that it had, whose state it takes.
        ``drop_state``: operators and sources that are gone, or have changed too much, whose state may be lost.
        ``renamed_from``: the name that the job had.
        ``dry_run``: compare the program with the checkpoints, or with the savepoint ``start_from``, start and write
        nothing, and return the comparison.

        Raises ``ConfigurationError``, ``InsufficientSlots``, ``OutputDirectoryError``, ``CheckpointDirectoryError`` or
        ``InputError`` when the job cannot start; ``JobRunsElsewhere`` when another driver runs it;
        ``UntrustedCheckpoint`` when the checkpoint to resume from is unsigned or signed with another key.
        """
        if self._executed:
            raise ConfigurationError("this environment was executed already; draw the next job with a new one")
        if resume not in (True, False, "auto"):
            raise ConfigurationError(f"resume must be True, False or 'auto', not {resume!r}")
        if start_from is not None and resume is True:
            raise ConfigurationError("give resume=True or start_from, not both; resume='auto' goes with start_from")
        requests = requests_of(state_from, drop_state, renamed_from, bool(resume or dry_run or start_from is not None))
        going_on = bool(resume) and start_from is not None and has_checkpoints(self.options)
        savepoint = None if start_from is None or going_on else os.fspath(start_from)
        self.graph.fuse()
        if dry_run or asked_by_command():
            return hand_over(check_upgrade(name, self.graph, self.options, requests, trust, savepoint))
        for node in self.graph.nodes:
            try:
                cloudpickle.dumps(node.body)
            except Exception as error:  # pickling fails with many kinds of errors
                raise ConfigurationError(
                    f"operator {node.name!r} cannot be sent to the slots: {error}; let its function make what it needs"
                ) from error
        drawn = self.spark, name, self.graph, self.options, self._frames, self.output_id
        if savepoint is not None:
            running = start_drawn(*drawn, savepoint, trust=trust, requests=requests)
        else:
            running = start_job(*drawn, resume=resume, trust=trust, requests=requests)
        self._executed = True
        return JobHandle(running)

    @staticmethod
    def resume(
        spark: SparkSession,
        checkpoint_dir: str | os.PathLike[str],
        *,
        trust: bool = False,
        name: str | None = None,
        new_checkpoint_dir: str | os.PathLike[str] | None = None,
        **options: Unpack[RunOptions],
    ) -> JobHandle:
        """Resume the job in ``checkpoint_dir``, as it was drawn, from its last complete checkpoint; or, if that is a
        savepoint, start a new job from it.

        ``trust``: as in ``execute``.
        ``new_checkpoint_dir``: of the new job that starts from a savepoint; needed there, and only there.
        ``name``: the name that the job must have; ``None``: any.
        ``options``: settings of this run; with another ``parallelism``, state and input are divided again.

        Raises ``CheckpointDirectoryError`` when the directory has no job to resume, or one with another name;
        ``UntrustedCheckpoint`` when the job is not signed with this user's key (option ``signing_key``).
        """
        found = find_job(os.fspath(checkpoint_dir), options.get("signing_key"), trust, name)
        new = None if new_checkpoint_dir is None else os.fspath(new_checkpoint_dir)
        return JobHandle(resume_found(spark, found, new, dict(options)))
