"""The output of a program that is replaced: completed as its last checkpoint says, before another program goes on."""

from __future__ import annotations

from collections.abc import Callable

from flinkplus.errors import ConfigurationError
from flinkplus.protocol.program.comparison import Comparison
from flinkplus.protocol.snapshot.manifest import Manifest
from flinkplus.protocol.vocabulary.ids import CheckpointId
from flinkplus.runtime.coordinator.drivers.commits import Commits
from flinkplus.sinks.base import Sink
from flinkplus.sinks.discard import DiscardSink
from flinkplus.sinks.former import former_sink
from flinkplus.state.durable.storage import CheckpointStorage

IN_MEMORY = ("CollectSink", "DiscardSink")


def continue_output(
    commits: Commits,
    change: Comparison,
    manifest: Manifest,
    storage: CheckpointStorage,
    job_id: str,
    taken_over: Callable[[str], None],
) -> None:
    """Commit what the checkpoint has staged to the sinks of its own program, retract what is later, and prepare the
    sinks of the new program, ``commits``: to continue the same output, or to begin another.

    Raises ``OutputDirectoryError``, and ``ConfigurationError`` for output that cannot be committed without its sink.
    """
    names = {name: former for name, former in change.origins.items() if name in commits.sinks}
    followers = {former: name for name, former in names.items()}
    sinks: dict[str, Sink] = {}
    shared = {}
    for former, known in change.old.operators.items():
        if known.kind != "sink":
            continue
        sink = former_sink(former, known.settings, job_id)
        if sink is None and former in followers:
            shared[former] = commits.committers[followers[former]]
            sink = commits.sinks[followers[former]]
        elif sink is None and known.body not in IN_MEMORY and manifest.commits[former].files:
            raise ConfigurationError(
                f"sink {former!r} is gone, and output of checkpoint {manifest.checkpoint} waits to be committed by it: "
                "resume the program before, and stop it, which commits; then resume the new one"
            )
        sinks[former] = DiscardSink(former) if sink is None else sink
    before = Commits(sinks, storage, taken_over)
    before.committers.update(shared)
    before.prepare(resume=True)
    before.adopt(CheckpointId(manifest.checkpoint), manifest)
    for former, committer in before.committers.items():
        if former not in followers:
            committer.discard()  # what is staged after the checkpoint: nothing will describe it any more
    commits.continue_from(before, names)
