"""What can fail, and the phases of a recovery: the one list of them, for machines, reports, tables and pictures.

- detect: the failure is known.
- fence: the old generation is being made void. In a failover ZooKeeper and the slots get the new generation and heads;
  in a handover ZooKeeper has them by then; in a rollback manifests and commits in flight end.
- promote: nothing of the old generation can have an effect any more. In a failover the line is known; in a rollback
  the missing slots register.
- restore: the subtasks are being built on the state that they go back to.
- replay: all subtasks run.
- caught_up: all subtasks that began anew put out what is new. The reports of the subtasks tell it, not a machine.
"""

from __future__ import annotations

from typing import Literal, TypeAlias, get_args

FailureKind: TypeAlias = Literal["exception", "slot", "deploy", "restore", "checkpoint", "commit", "slots", ""]
"""What went wrong: a subtask threw; a slot died; a slot did not deploy in time; a checkpoint was corrupt; no last
checkpoint came about; the storage refused output or manifests; slots never registered."""

Phase: TypeAlias = Literal["detect", "fence", "promote", "restore", "replay", "caught_up"]

PHASES: tuple[Phase, ...] = get_args(Phase)
"""In their order."""

DURATIONS: tuple[Phase, ...] = PHASES[:-1]
"""Those that take a time of their own, ``detect_ms`` and so on; ``caught_up_ms`` is the time of all of them, and
more."""
