"""Kinds of failures, and the phases of a recovery: one list for machines, reports, tables and pictures.

- detect: the failure is known.
- fence: the old generation becomes void. In a failover, ZooKeeper and the slots get the new generation and heads; in a
  handover, ZooKeeper already has them; in a rollback, manifests and commits in flight end.
- promote: the old generation has no effect any more. In a failover, the recovery line is known; in a rollback, the
  missing slots register.
- restore: the subtasks are being built on the state that they go back to.
- replay: all subtasks run.
- caught_up: all restarted subtasks produce new output. Reports of subtasks show it; no machine decides it.
"""

from __future__ import annotations

from typing import Literal, TypeAlias, get_args

FailureKind: TypeAlias = Literal[
    "exception", "slot", "deploy", "restore", "checkpoint", "commit", "slots", "rescale", ""
]
"""What failed: a subtask raised an exception; a slot died; a slot did not deploy in time; a checkpoint was corrupt; no
last checkpoint became complete; the storage refused output or manifests; slots never registered.
``rescale``: nothing; the job continues at another parallelism."""

Phase: TypeAlias = Literal["detect", "fence", "promote", "restore", "replay", "caught_up"]

PHASES: tuple[Phase, ...] = get_args(Phase)
"""The phases in order."""

DURATIONS: tuple[Phase, ...] = PHASES[:-1]
"""Phases with a duration, ``detect_ms`` and so on; ``caught_up_ms`` covers all of them, and more."""
