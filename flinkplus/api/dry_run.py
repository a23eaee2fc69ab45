"""``execute(..., dry_run=True)``: a program is compared with checkpoints. Nothing is started or written."""

from __future__ import annotations

from flinkplus.api.upgrades import Upgrade
from flinkplus.config import Options
from flinkplus.errors import ConfigurationError
from flinkplus.graph import JobGraph
from flinkplus.protocol.program.comparison import Requests
from flinkplus.runtime.job.savepoints import find_savepoint
from flinkplus.runtime.job.signing import find_key
from flinkplus.runtime.job.start import compare_with
from flinkplus.state.durable.storage import CheckpointStorage


def check_upgrade(
    name: str, graph: JobGraph, options: Options, requests: Requests, trust: bool, start_from: str | None = None
) -> Upgrade:
    """The comparison of a program with the checkpoints in ``options.checkpoint_dir``, or with a savepoint.

    Raises ``ConfigurationError`` without a directory; as ``execute`` for one that cannot be read.
    """
    if start_from is not None:
        savepoint = find_savepoint(start_from, options.signing_key, trust)
        found = compare_with(savepoint.storage, None, graph, options, requests)
        return Upgrade(name, start_from, found is not None, () if found is None else found[1].changes)
    if options.checkpoint_dir is None:
        raise ConfigurationError("a dry run compares the program with checkpoints: give checkpoint_dir, or start_from")
    where = options.checkpoint_dir
    storage = CheckpointStorage(where, key=find_key(options.signing_key, where, make=False), trust=trust)
    found = compare_with(storage, requests.names(name), graph, options, requests)
    return Upgrade(name, where, found is not None, () if found is None else found[1].changes)
