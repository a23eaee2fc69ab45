"""The failures of a run: how many, how far apart, where, and of which kind; all of it from the seed.

Runs take turns in having one, two and three failures, and in having them at once or one after the other. The first
failure is that of a subtask drawn from all, or of its slot; each further one lies beside the one before:

- ``downstream``: the next stage in the same slot (or, the slot being killed, in another): a producer and its consumer;
- ``beside``: the same stage in another slot;
- ``across``: another stage in another slot;
- ``again``: the same subtask, wherever it is by then: its successor. Only for kills some time apart.

A share of the runs has rescales as well (``rescales``); a subtask that does not exist by then stands for the one whose
number is the remainder.

Rules: pure. At once, no slot is killed twice; no subtask is ordered twice to raise, since one that raises twice without
a checkpoint in between is taken back, by intention.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from experiments.exactness import rescales
from experiments.exactness.rescales import Rescale

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
RESCALE_S = 3.0
"""How much longer with each rescale: new slots start, and a checkpoint becomes complete."""
STRUCK_AFTER = (0.25, 0.6)
"""How much of the input has been read when the first failure comes."""
RATES = (1_000.0, 3_000.0)
VOCABULARIES = (40, 400)


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
    """One run. ``rows`` of input come at a ``rate``; the first failure, or a rescale that is requested before it, comes
    when ``at_row`` of them have been read. ``parallelism``: at the start."""

    run: int
    seed: int
    parallelism: int
    rate: float
    rows: int
    vocabulary: int
    at_row: int
    apart_s: float
    strikes: tuple[Strike, ...]
    rescales: tuple[Rescale, ...] = ()


def drawn(run: int, seed: int, parallelism: int, apart: float, more_s: float, rescaled: float = 0.0) -> Case:
    """One run. Its failures depend on its number, the seed and the parallelism alone.

    ``apart``: seconds between failures that are not at once. ``more_s``: seconds of input behind all else.
    ``rescaled``: the share of runs with rescales.
    """
    chance = np.random.default_rng(np.random.SeedSequence((seed, parallelism, run)))
    count = FAILURES[run % len(FAILURES)]
    apart_s = (0.0, apart)[run // len(FAILURES) % 2] if count > 1 else 0.0
    of_input, rate = int(chance.integers(1 << 31)), round(float(chance.uniform(*RATES)), 1)
    vocabulary = int(chance.integers(*VOCABULARIES))
    at_row = round(rate * INPUT_S * float(chance.uniform(*STRUCK_AFTER)))
    strikes = _drawn(chance, count, apart_s, parallelism)
    changes = rescales.drawn(run, seed, parallelism, len(strikes), rescaled)
    length_s = INPUT_S + more_s + max(0.0, apart_s - APART_S) * (count - 1) + RESCALE_S * len(changes)
    return Case(
        run=run,
        seed=of_input,
        parallelism=parallelism,
        rate=rate,
        rows=round(rate * length_s),
        vocabulary=vocabulary,
        at_row=at_row,
        apart_s=apart_s,
        strikes=strikes,
        rescales=changes,
    )


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
