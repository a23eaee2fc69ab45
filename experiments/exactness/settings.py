"""What to run: how many failures in each run, how far apart, where, and of which kind; all of it from the seed.

Runs take turns in having one, two and three failures, and in having them at once or one after the other. The first
failure is that of a subtask drawn from all, or of the slot it is in; each further one lies beside the one before:

- ``downstream``: the next stage in the same slot (or, the slot being killed, in another): a producer and its consumer;
- ``beside``: the same stage in another slot;
- ``across``: another stage in another slot;
- ``again``: the same subtask, wherever it is by then: its successor. Only for kills some time apart.

Rules: pure. At once, no slot is killed twice; no subtask is told twice to raise, since one that raises twice without a
checkpoint in between is taken back, by intention.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from flinkplus.config import options_from
from flinkplus.runtime.faults.points import CURSOR, DETERMINANTS, DIGESTS, FILTER, SUPPRESSION, WITHOUT

if TYPE_CHECKING:
    import numpy as np

WORDS, COUNT, PLACE, TOP, SINK = "words", "count", "place", "top", "out"
STAGES = (WORDS, COUNT, PLACE, TOP)
"""In the order of the stream; every one runs in every slot."""
FAILURES = (1, 2, 3)
APART_S = 0.05
SIGKILL, EXCEPTION = "sigkill", "exception"
SIGKILLS = 0.65
"""The share of failures that are SIGKILL to a slot; the others are exceptions in one subtask."""
DOWNSTREAM, BESIDE, ACROSS, AGAIN = "downstream", "beside", "across", "again"
INPUT_S = 2.4
"""How long a job's input lasts."""
STRUCK_AFTER = (0.25, 0.6)
"""How much of the input has been read when the first failure comes."""
CHECKPOINT_TIMEOUT_S = 3.0
"""A job that lacks a part may lose a barrier; then it goes on when the checkpoint is given up."""
PROTECTIONS = ({DETERMINANTS, DIGESTS}, {SUPPRESSION, FILTER, CURSOR})
"""Each of these parts is enough against one kind of damage: histories that are mixed; messages that are taken twice."""
RATES = (1_000.0, 3_000.0)
VOCABULARIES = (40, 400)


@dataclass(frozen=True)
class Settings:
    """What to run.

    ``recovery``: of the jobs, ``standby`` or ``partial``. ``apart``: seconds between failures that are not at once.
    ``without``: parts of the protocol that the jobs lack (``flinkplus.runtime.faults.points``). ``first``: number of
    the first run. ``more_s``: seconds of input behind all else: a job that lacks determinants makes fewer messages
    than it did, and the end of its input should not be among those that its consumers take for old ones.
    """

    runs: int = 200
    seed: int = 1
    parallelism: int = 4
    replicas: int = 4
    recovery: str = "standby"
    interval: float = 0.3
    apart: float = APART_S
    without: tuple[str, ...] = ()
    first: int = 0
    more_s: float = 0.0

    @property
    def does_damage(self) -> bool:
        """Whether damage is to be expected: nothing is left that protects against one kind of it."""
        return any(parts.issubset(self.without) for parts in PROTECTIONS)

    def check(self) -> None:
        """Raises ``ConfigurationError`` for what no run would accept."""
        options_from({}, self.options())

    def options(self) -> dict[str, Any]:
        """The options of a run's job."""
        return {
            "parallelism": self.parallelism,
            "replicas": self.replicas,
            "checkpoint_interval": self.interval,
            "checkpoint_timeout": CHECKPOINT_TIMEOUT_S,
            "recovery": self.recovery,
            "max_restarts": 100,
            "faults": tuple(WITHOUT + part for part in self.without),
        }

    def cases(self) -> list[Case]:
        """All runs, in their order."""
        return [self.case(run) for run in range(self.first, self.first + self.runs)]

    def case(self, run: int) -> Case:
        """One run; it depends on nothing but its number, the seed and the parallelism."""
        import numpy as np

        chance = np.random.default_rng(np.random.SeedSequence((self.seed, self.parallelism, run)))
        count = FAILURES[run % len(FAILURES)]
        apart_s = (0.0, self.apart)[run // len(FAILURES) % 2] if count > 1 else 0.0
        seed, rate = int(chance.integers(1 << 31)), round(float(chance.uniform(*RATES)), 1)
        return Case(
            run=run,
            seed=seed,
            rate=rate,
            rows=round(rate * (INPUT_S + self.more_s + max(0.0, apart_s - APART_S) * (count - 1))),
            vocabulary=int(chance.integers(*VOCABULARIES)),
            at_row=round(rate * INPUT_S * float(chance.uniform(*STRUCK_AFTER))),
            apart_s=apart_s,
            strikes=_drawn(chance, count, apart_s, self.parallelism),
        )


@dataclass(frozen=True)
class Strike:
    """One failure: of subtask ``index`` of ``stage`` by an exception, or of the slot it is in by SIGKILL.
    ``where``: how it lies to the one before."""

    kind: str
    stage: str
    index: int
    where: str = ""

    @property
    def subtask(self) -> str:
        return f"{self.stage}[{self.index}]"


@dataclass(frozen=True)
class Case:
    """One run. ``rows`` of input come at a ``rate``; the first failure comes when ``at_row`` of them have been read."""

    run: int
    seed: int
    rate: float
    rows: int
    vocabulary: int
    at_row: int
    apart_s: float
    strikes: tuple[Strike, ...]


def _drawn(chance: np.random.Generator, count: int, apart_s: float, parallelism: int) -> tuple[Strike, ...]:
    strikes = [Strike(_kind(chance), STAGES[chance.integers(len(STAGES))], int(chance.integers(parallelism)))]
    while len(strikes) < count:
        strike = _beside(chance, strikes[-1], apart_s, parallelism)
        if strike is not None and _fits(strike, strikes, apart_s):
            strikes.append(strike)
        elif all(_taken(strikes, slot) for slot in range(parallelism)):
            break  # fewer slots than failures
    return tuple(strikes)


def _kind(chance: np.random.Generator) -> str:
    return SIGKILL if chance.random() < SIGKILLS else EXCEPTION


def _beside(chance: np.random.Generator, last: Strike, apart_s: float, parallelism: int) -> Strike | None:
    """The next failure, or ``None`` where there is none of the kind drawn."""
    where = (DOWNSTREAM, BESIDE, ACROSS, AGAIN)[chance.integers(4)]
    kind = _kind(chance)
    stage, index = STAGES.index(last.stage), last.index
    another = (index + int(chance.integers(1, parallelism))) % parallelism if parallelism > 1 else index
    match where:
        case "downstream":
            stage += 1
            index = another if SIGKILL in (kind, last.kind) else index
        case "beside":
            index = another
        case "across":
            stage, index = int(chance.integers(len(STAGES))), another
        case _:
            if apart_s == 0.0 or kind != SIGKILL or last.kind != SIGKILL:
                return None
    return Strike(kind, STAGES[stage], index, where) if stage < len(STAGES) else None


def _fits(strike: Strike, strikes: list[Strike], apart_s: float) -> bool:
    if strike.kind == EXCEPTION:
        return all(
            (known.kind, known.stage, known.index) != (EXCEPTION, strike.stage, strike.index) for known in strikes
        )
    return apart_s > 0 or not _taken(strikes, strike.index)


def _taken(strikes: list[Strike], slot: int) -> bool:
    return any(known.kind == SIGKILL and known.index == slot for known in strikes)
