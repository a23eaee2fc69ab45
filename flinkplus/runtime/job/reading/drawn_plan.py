"""The plan of a job read for what it says of operators and schemas, without loading a function of the user's.

Rule: only classes of FlinkPlus, and Arrow's types, are made; everything else has a stand-in (``plain_objects``). So
neither the program nor its modules are needed, and none of their code runs.
"""

from __future__ import annotations

from typing import Any

from flinkplus.errors import CheckpointDirectoryError
from flinkplus.path_names import checked_name
from flinkplus.printable import printable
from flinkplus.runtime.job.plan import Plan, pickled_plan
from flinkplus.state.durable.storage import CheckpointStorage
from flinkplus.state.reading.plain_objects import PlainUnpickler, loaded

ARROW = frozenset(
    {
        *("schema", "field", "type_for_alias", "timestamp", "time32", "time64", "duration", "binary", "struct", "map_"),
        *("decimal32", "decimal64", "decimal128", "decimal256", "dictionary", "run_end_encoded"),
        *("list_", "large_list", "list_view", "large_list_view"),
    }
)
"""What makes schemas in ``pyarrow.lib``."""


def drawn_plan(storage: CheckpointStorage, where: str) -> Plan:
    """The plan, with stand-ins for all functions. ``where``: the directory, for errors.

    Raises as ``pickled_plan``, and ``CheckpointDirectoryError`` for a plan that cannot be read so.
    """
    pickled = pickled_plan(storage, where)
    try:
        plan = PlainUnpickler(pickled, _of_plans).load()
    except Exception as error:  # an author's class may be pickled in any way
        raise CheckpointDirectoryError(
            f"the plan in {where} cannot be read ({printable(error)}): read the state with the version that wrote it"
        ) from error
    if not isinstance(plan, Plan):
        raise CheckpointDirectoryError(f"the file in {where} is not a plan: it holds {printable(type(plan).__name__)}")
    storage.signed.job_id = checked_name(plan.output_id)
    return plan


def _of_plans(module: str, name: str) -> Any | None:
    """A class or constructor that plans consist of."""
    if module == "pyarrow.lib" and name in ARROW:
        return loaded(module, name)
    if module.startswith("flinkplus."):
        found = loaded(module, name)
        return found if isinstance(found, type) else None
    return None
