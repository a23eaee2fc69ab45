"""Messages and orders in a few words, for traces."""

from __future__ import annotations

import dataclasses
from typing import Any

from flinkplus.protocol.vocabulary.in_flight import AbortCause
from flinkplus.runtime.control import messages as control


def brief(value: Any) -> str:
    """One line for any value that a trace has; a control message without what is only long."""
    match value:
        case control.Register(slot, attempt, pid, host, address):
            return f"Register {slot} {attempt} {pid} {host} {address}"
        case control.Acknowledged(generation, checkpoint, subtask, _):
            return f"Acknowledged {subtask} generation {generation} checkpoint {checkpoint}"
        case control.Declined(generation, checkpoint, subtask, reason):
            cause = "" if value.abort_cause is AbortCause.OTHER else f" ({value.cause})"
            return f"Declined {generation} {checkpoint} {subtask} {reason}{cause}"
        case control.Deploy(generation, checkpoint):
            return f"Deploy generation {generation} from checkpoint {checkpoint}"
        case control.Fence(attempt, generation, failed):
            moves = ", ".join(f"{name} to slot {slot}" for name, slot in failed.items())
            return f"Fence attempt {attempt} generation {generation}: {moves}"
        case control.Fenced(attempt, received, sent, determinants):
            steps = {name: [(run[0], len(run[1])) for run in runs] for name, runs in determinants.items()}
            return f"Fenced attempt {attempt} received {received} sent {sent} steps {steps}"
        case control.Promote(attempt, generation):
            versions = ", ".join(f"{name} from version {told.version}" for name, told in value.subtasks.items())
            return f"Promote attempt {attempt} generation {generation}: {versions}"
        case control.Chains(chains):
            return f"Chains {', '.join(f'{name} {found[1]}' for name, found in chains.items())}"
        case control.Join(generation):
            return f"Join generation {generation}"
        case control.Connect(serial, addresses):
            return f"Connect {serial}: {', '.join(addresses)}"
        case _ if dataclasses.is_dataclass(value) and type(value).__module__ == control.__name__:
            fields = [getattr(value, field.name) for field in dataclasses.fields(value)]
            return " ".join([type(value).__name__, *(str(field) for field in fields if field != "")])
        case _:
            return str(value)
