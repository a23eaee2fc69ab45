"""The recipes of sinks whose rows are visible at once, as the driver reads them (``protocol.determinants.recipe``).

Before a deployment, all of these sinks are fenced, and all recipes read. In a failover or handover, those of the failed
set are, while the slots are fenced: no other subtask knows the steps of a last subtask, and a sink may be the only one
that knew steps of its ancestors.

Rules: the coordinator's thread calls; reading is done in a worker, in a failover in one of its own: a database that
hangs must not delay writes to ZooKeeper for other failovers. The recipe of a deployment counts in each failover
until a checkpoint of the deployment is complete: subtasks that still repeat it have not passed it on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from chain_backup.failover import events as failover_events
from chain_backup.failover.effects import FenceSlots
from flinkplus.protocol.determinants.recipe import NO_RECIPE, Recipe, StoredOutput, read_recipe
from flinkplus.protocol.vocabulary import events
from flinkplus.protocol.vocabulary.effects import FenceOutput
from flinkplus.protocol.vocabulary.ids import CheckpointId, Generation, SubtaskId
from flinkplus.protocol.vocabulary.lineage import Lineage
from flinkplus.runtime.control.promotion_order import PromotionOrder
from flinkplus.runtime.control.spans import spans_to_json
from flinkplus.runtime.coordinator.dispatch.dispatch import Deployment, Dispatch
from flinkplus.runtime.coordinator.dispatch.machines import JobMachines

DEPLOYMENT_PATIENCE_S = 40.0
"""How long a deployment tries to reach a database."""
FAILOVER_PATIENCE_S = 1.0
"""The same in a failover; after that the job rolls back."""


class RecipeStore(Protocol):
    """The tables of the sinks; see ``RecipeKeeper``."""

    def fence_output(
        self, sink: str, generation: Generation, subtasks: Sequence[int], parallelism: int, patience_s: float
    ) -> Mapping[int, StoredOutput]: ...

    def divide_output(
        self, sink: str, generation: Generation, checkpoint: CheckpointId, parallelism: int, patience_s: float
    ) -> None: ...


@dataclass(eq=False, repr=False)
class RecipeDriver:
    """Fences the sinks, and reads their recipes.

    ``_sinks``: vertex -> its sinks that keep a recipe.

    ``deployed``: the recipe of the newest deployment.
    """

    _dispatch: Dispatch
    _machines: JobMachines
    _deployment: Deployment
    _store: RecipeStore
    _sinks: Mapping[str, Sequence[str]]
    _lineage: Lineage
    deployed: Recipe = field(default=NO_RECIPE, init=False)
    _lasting: Recipe = field(default=NO_RECIPE, init=False)
    _of_attempt: tuple[int, Recipe] = field(default=(0, NO_RECIPE), init=False)

    # --- deployments

    def fence_all(self, effect: FenceOutput) -> None:
        """Fence all sinks for the next deployment."""
        generation, since = effect.generation, effect.checkpoint or CheckpointId(0)
        subtasks = [SubtaskId(vertex, index) for vertex in self._sinks for index in range(self._deployment.parallelism)]
        read: list[Recipe] = []

        def fence() -> None:
            for sink in [sink for sinks in self._sinks.values() for sink in sinks] if since else ():
                parallelism = self._deployment.parallelism
                self._store.divide_output(sink, generation, since, parallelism, DEPLOYMENT_PATIENCE_S)
            read.append(self._fence(generation, subtasks, since, DEPLOYMENT_PATIENCE_S))

        def fenced() -> None:
            self.deployed = self._lasting = read[0]
            for number in range(self._machines.checkpoints.next_number, max(self.deployed.checkpoints, default=0) + 1):
                self._machines.step_checkpoints(events.NumberTaken(CheckpointId(number)))
            self._machines.step_job(events.OutputFenced(generation, repeats=not self.deployed.is_empty))

        def failed(reason: str) -> None:
            self._machines.step_job(events.OutputFenceFailed(generation, reason))

        self._dispatch.work(self._dispatch.storage, fence, fenced, failed)

    def _fence(
        self, generation: Generation, subtasks: Sequence[SubtaskId], since: CheckpointId, patience_s: float
    ) -> Recipe:
        stored: dict[SubtaskId, StoredOutput] = {}
        for vertex, sinks in self._sinks.items():
            indexes = [subtask.index for subtask in subtasks if subtask.vertex == vertex]
            for sink in sinks if indexes else ():
                found = self._store.fence_output(sink, generation, indexes, self._deployment.parallelism, patience_s)
                stored.update({SubtaskId(vertex, index): output for index, output in found.items()})
        return read_recipe(stored, self._lineage, since)

    def completed(self) -> None:
        """A checkpoint of the deployment is complete: no subtask repeats its recipe any more."""
        self._lasting = NO_RECIPE

    # --- failovers

    def fence(self, effect: FenceSlots, complete: CheckpointId) -> None:
        """Fence the sinks of an attempt. ``complete``: the newest complete checkpoint."""
        attempt, step = effect.attempt, self._machines.step_failover
        read: list[Recipe] = []

        def fence() -> None:
            read.append(self._fence(effect.generation, effect.recipes, complete, FAILOVER_PATIENCE_S))

        def fenced() -> None:
            self._of_attempt = attempt, read[0]
            step(failover_events.RecipesFetched(attempt))

        def failed(reason: str) -> None:
            step(failover_events.RecipeFetchFailed(attempt, reason))

        if effect.recipes:
            self._dispatch.work(self._dispatch.output, fence, fenced, failed)

    def added_to(self, order: PromotionOrder, subtask: SubtaskId, attempt: int) -> PromotionOrder:
        """The promotion order of ``subtask`` with what the recipes of ``attempt`` and of the deployment say."""
        determinants, ancestors = list(order.determinants), dict(order.ancestors)
        asked = self._lineage.asked_of([subtask])
        found = [self._lasting, *([self._of_attempt[1]] if self._of_attempt[0] == attempt else ())]
        for recipe in found:
            determinants += spans_to_json(recipe.spans.get(subtask, ()))
            for ancestor, spans in recipe.spans.items():
                if ancestor.vertex in asked:
                    name = str(ancestor)
                    ancestors[name] = [*ancestors.get(name, ()), *spans_to_json(spans)]
        recorded = max(recipe.recorded.get(subtask, 0) for recipe in found)
        return replace(order, determinants=determinants, ancestors=ancestors, recorded=recorded)
