"""What a program is to the checkpoints that it would be resumed from, for users (``docs/upgrades.md``).

``flinkplus check-upgrade`` runs a program with ``CHECK_VARIABLE`` set: then ``execute`` hands the comparison to the
command, and the program ends there.
"""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from flinkplus.errors import ConfigurationError
from flinkplus.protocol.program.comparison import Change, Requests

CHECK_VARIABLE = "FLINKPLUS_CHECK_UPGRADE"
"""A file that ``execute`` writes the comparison to, instead of starting the job."""


@dataclass(frozen=True)
class Upgrade:
    """A program compared with the checkpoints of a job.

    ``job``: its name. ``directory``: of the checkpoints. ``begun``: whether a job has begun there.
    ``changes``: a ``Change`` for each operator, with ``operator``, ``was``, ``now``, ``verdict`` and ``why``.
    """

    job: str
    directory: str
    begun: bool
    changes: tuple[Change, ...]

    @property
    def permitted(self) -> bool:
        """Whether the program can be resumed from the last checkpoint."""
        return not any(change.verdict == "refused" for change in self.changes)

    def __iter__(self) -> Iterator[Change]:
        return iter(self.changes)

    def as_dict(self) -> dict[str, Any]:
        """The comparison as JSON."""
        changes = [asdict(change) for change in self.changes]
        return {
            "job": self.job,
            "directory": self.directory,
            "begun": self.begun,
            "permitted": self.permitted,
            "changes": changes,
        }

    def __str__(self) -> str:
        lines = [f"{change.operator}: {change.verdict}" + (f" ({change.why})" if change.why else "") for change in self]
        return "\n".join(lines) or "nothing to compare: no job has begun"


def requests_of(
    state_from: Mapping[str, str] | None, drop_state: Collection[str], renamed_from: str | None, resume: bool
) -> Requests:
    """The requests of a call of ``execute``. Raises ``ConfigurationError`` for those that make no sense."""
    found = {} if state_from is None else state_from
    if not isinstance(found, Mapping) or not all(isinstance(name, str) for pair in found.items() for name in pair):
        raise ConfigurationError(f"state_from must be a dict of new names to old names, not {state_from!r:.200}")
    if isinstance(drop_state, str) or not all(isinstance(name, str) for name in drop_state):
        raise ConfigurationError(f"drop_state must be a list of names, not {drop_state!r:.200}")
    if len(set(found.values())) < len(found):
        raise ConfigurationError(f"state_from gives the state of one operator to two: {dict(found)!r:.200}")
    if not resume and (found or drop_state or renamed_from is not None):
        raise ConfigurationError(
            "state_from, drop_state and renamed_from need resume=True, resume='auto' or start_from"
        )
    return Requests(dict(found), tuple(drop_state), renamed_from)


def asked_by_command() -> bool:
    """Whether ``flinkplus check-upgrade`` runs this program."""
    return bool(os.environ.get(CHECK_VARIABLE))


def hand_over(upgrade: Upgrade) -> Upgrade:
    """``upgrade``; in a program that ``flinkplus check-upgrade`` runs, it is given to the command, and the program ends
    (``SystemExit``)."""
    path = os.environ.get(CHECK_VARIABLE)
    if path:
        with open(path, "a", encoding="utf-8") as file:
            file.write(json.dumps(upgrade.as_dict()) + "\n")
        raise SystemExit(0)
    return upgrade
