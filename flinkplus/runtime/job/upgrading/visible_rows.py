"""Rows that are visible at once, when a job is resumed with what would not make them again.

Rows behind the checkpoint may be visible, and the recipe beside them fits only the program, the parallelism and the
``batch_rows`` that made them. Nothing is visible behind it after a stop with a savepoint, since sinks hold rows back
behind that.

Rules: the sinks refuse all earlier runs before they are asked, so the answer stays true. Where such rows are visible, a
job that is given another parallelism begins at that of the checkpoint, and is rescaled when it runs: a program that a
supervisor starts again names the parallelism of its first start. One with another program or ``batch_rows`` is refused,
and can be resumed as it was. What another job shows, of whose savepoint this one was started, is not asked about: this
job cannot make it again, and writes elsewhere.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace

from flinkplus.config import Options
from flinkplus.errors import ConfigurationError
from flinkplus.protocol.program.comparison import Comparison, compare
from flinkplus.protocol.program.description import LOCATION, Program
from flinkplus.protocol.snapshot.manifest import Manifest
from flinkplus.protocol.vocabulary.ids import CheckpointId, Generation
from flinkplus.runtime.coordinator.drivers.commits import Commits
from flinkplus.runtime.job.plan import Plan, load_plan
from flinkplus.runtime.job.rescaling.rescale import parallelism_at
from flinkplus.runtime.job.upgrading.programs import read_program
from flinkplus.state.durable.storage import CheckpointStorage

AS_BEFORE = "rows of this job are visible at once, and what makes them again fits only what made them: resume it with "


@dataclass(frozen=True)
class RunBefore:
    """A run whose rows are visible at once. ``options``: those that it had. ``places``: the tables that show them."""

    options: Options
    places: frozenset[str]


def rows_made_by(plan: Plan, storage: CheckpointStorage) -> RunBefore | None:
    """The run before, if its rows are visible at once.

    Raises ``ConfigurationError`` if ``plan`` differs and there is no checkpoint: rows are visible before the first one.
    """
    known = read_program(storage, None).program
    places = frozenset(_places_at_once(known).values())
    if not places:
        return None
    before = load_plan(storage, storage.uri)
    old, new = before.options, plan.options
    if not storage.manifests.checkpoints():
        change = compare(before.graph.program(old.max_parallelism), plan.graph.program(new.max_parallelism))
        found = _differences(change, old.parallelism, old, new)
        if found:
            raise ConfigurationError(f"{AS_BEFORE}the same {found}")
    return RunBefore(old, places)


def close_output(
    plan: Plan,
    commits: Commits,
    manifest: Manifest,
    change: Comparison,
    rows_by: RunBefore | None,
    generation: Generation,
) -> Plan:
    """``plan``, or with the parallelism of the checkpoint of ``manifest`` if only that can make rows again that are
    visible behind it. Otherwise no earlier run will show such rows any more.

    Raises ``ConfigurationError`` if rows are visible that another program or ``batch_rows`` has made;
    ``OutputUnavailable`` if a database does not answer.

    ``change``: from the program of the checkpoint to that of ``plan``. ``rows_by``: see ``rows_made_by``.
    ``generation``: higher than any of an earlier run.
    """
    if rows_by is None:
        return plan
    parallelism = parallelism_at(manifest, change.old.vertices)
    found = _differences(change, parallelism, rows_by.options, plan.options)
    if not found or _are_closed(commits, change, rows_by.places, generation, CheckpointId(manifest.checkpoint)):
        return plan
    if change.is_direct and rows_by.options.batch_rows == plan.options.batch_rows:
        warnings.warn(
            f"rows are visible behind checkpoint {manifest.checkpoint}, which only {parallelism} subtasks can make "
            f"again: the job begins at parallelism {parallelism}, and is then rescaled to {plan.options.parallelism}",
            RuntimeWarning,
            stacklevel=2,
        )
        return replace(plan, options=replace(plan.options, parallelism=parallelism))
    raise ConfigurationError(
        f"{AS_BEFORE}the same {found}, and stop it with a savepoint, which leaves no such rows behind its checkpoint; "
        "then change it"
    )


def _are_closed(
    commits: Commits, change: Comparison, places: frozenset[str], generation: Generation, checkpoint: CheckpointId
) -> bool:
    """Whether nothing behind ``checkpoint`` is visible, and will not be, in the tables ``places`` of this job."""
    followers = {former: name for name, former in change.origins.items()}
    sinks = [name for name, place in _places_at_once(change.old).items() if place in places]
    gone = [former for former in sinks if former not in followers]
    if gone:
        raise ConfigurationError(
            f"sink {gone[0]!r} is gone, and only it can find out whether rows are visible that were made behind "
            f"checkpoint {checkpoint}: keep it, with the same table or topic"
        )
    return all([commits.close_output(followers[former], generation, checkpoint) for former in sinks])


def _differences(change: Comparison, parallelism: int, old: Options, new: Options) -> str:
    """What a recipe depends on and is another now, as it was; empty if there is nothing."""
    found = [] if change.is_direct else ["program"]
    found += [] if parallelism == new.parallelism else [f"parallelism={parallelism}"]
    found += [] if old.batch_rows == new.batch_rows else [f"batch_rows={old.batch_rows}"]
    return ", ".join(found)


def _places_at_once(program: Program) -> dict[str, str]:
    """Sink whose rows are visible at once -> its table."""
    return {
        name: str(known.settings[LOCATION])
        for name, known in program.operators.items()
        if known.settings.get("visibility") == "at_once"
    }
