"""The output of a program that is replaced: completed as its last checkpoint says, before another program goes on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from flinkplus.errors import CheckpointDirectoryError, ConfigurationError
from flinkplus.protocol.program.comparison import Comparison, Requests
from flinkplus.protocol.program.description import Program
from flinkplus.protocol.snapshot.manifest import Manifest
from flinkplus.protocol.vocabulary.ids import CheckpointId, Generation
from flinkplus.runtime.coordinator.drivers.commits import Commits
from flinkplus.runtime.job.plan import Plan
from flinkplus.runtime.job.upgrading.programs import (
    NO_CHANGE,
    check_permitted,
    compared,
    continued_outputs,
    put_program,
    read_program,
)
from flinkplus.runtime.job.upgrading.visible_rows import RunBefore, close_output
from flinkplus.sinks.base import Sink
from flinkplus.sinks.discard import DiscardSink
from flinkplus.sinks.former import former_sink
from flinkplus.state.durable.savepoint import SavepointOrigin
from flinkplus.state.durable.storage import CheckpointStorage

NO_GENERATION = Generation(0)
IN_MEMORY = ("CollectSink", "DiscardSink")


@dataclass
class Adoption:
    """Takes over the output of the checkpoint from which ``plan`` is resumed. Afterwards the plan has the parallelism
    at which the job begins.

    ``requests``: of a program that may differ from that of the checkpoint; ``None``: it must not.
    ``origin``: the savepoint that the job was started from; ``None``: it began at the start.
    ``rows_by``: the run before, if its rows are visible at once.
    ``generation``: higher than any of an earlier run.
    ``change``: what has changed, once ``adopt`` was called.
    """

    plan: Plan
    storage: CheckpointStorage
    commits: Commits
    requests: Requests | None
    taken_over: Callable[[str], None]
    origin: SavepointOrigin | None = None
    rows_by: RunBefore | None = None
    generation: Generation = NO_GENERATION
    change: Comparison | None = None

    def adopt(self, checkpoint: CheckpointId, manifest: Manifest) -> None:
        """Commit what the checkpoint has staged, to the sinks of its own program; retract what is later.

        Raises ``ConfigurationError`` if the program does not fit the checkpoint, ``CheckpointDirectoryError`` if it
        must not differ; ``OutputDirectoryError``.
        """
        plan, storage, requests = self.plan, self.storage, self.requests
        change = compared(manifest, plan.graph.program(plan.options.max_parallelism), requests or NO_CHANGE)
        if not change.is_direct and (requests is None or manifest.final):
            why = "the job has finished" if manifest.final else "its last checkpoint is of another program"
            raise CheckpointDirectoryError(f"{why}, which is not the one to be resumed: run that one with resume=True")
        self.change = check_permitted(change, storage.uri)
        self.plan = plan = close_output(plan, self.commits, manifest, change, self.rows_by, self.generation)
        if requests is not None and not change.is_direct:
            put_program(storage, plan, read_program(storage, requests.names(plan.name)).splits)
        if self.origin is not None and checkpoint == self.origin.checkpoint:
            self.commits.succeed(self.origin, manifest, change.origins, continued_outputs(change))
        elif change.is_direct:
            self.commits.prepare(resume=True)
            self.commits.adopt(checkpoint, manifest)
        else:
            self._continue_output(change, manifest)

    def _continue_output(self, change: Comparison, manifest: Manifest) -> None:
        """Complete the output of the program before; then prepare the sinks of the new one, to continue the same output
        or to begin another."""
        commits = self.commits
        names = {name: former for name, former in change.origins.items() if name in commits.sinks}
        followers = {former: name for name, former in names.items()}
        sinks = {name: self._former(name, change, manifest, followers) for name in _sinks_of(change.old)}
        before = Commits(sinks, self.storage, self.taken_over)
        for former, name in followers.items():
            if isinstance(sinks[former], type(commits.sinks[name])):
                before.committers[former] = commits.committers[name]  # what it holds in memory goes on
        before.prepare(resume=True)
        before.adopt(CheckpointId(manifest.checkpoint), manifest)
        for former, committer in before.committers.items():
            if former not in followers:
                committer.discard()  # what is staged after the checkpoint: nothing will describe it any more
        commits.continue_from(before, names)

    def _former(self, name: str, change: Comparison, manifest: Manifest, followers: Mapping[str, str]) -> Sink:
        """A sink of the program before, as far as it is needed to commit and to retract."""
        known = change.old.operators[name]
        follower = self.commits.sinks.get(followers.get(name, ""))
        sink = former_sink(name, known.settings, self.plan.output_id, self.storage.uri, follower)
        if sink is None and name in followers:
            sink = follower
        elif sink is None and known.body not in IN_MEMORY and manifest.commits[name].files:
            raise ConfigurationError(
                f"sink {name!r} is gone, and output of checkpoint {manifest.checkpoint} waits to be committed by it: "
                "resume the program before, and stop it, which commits; then resume the new one"
            )
        return DiscardSink(name) if sink is None else sink


def _sinks_of(program: Program) -> list[str]:
    return [name for name, known in program.operators.items() if known.kind == "sink"]
