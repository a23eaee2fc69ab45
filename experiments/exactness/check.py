"""Whether an output is one that *some* interleaving of the job gives, and nothing else: every row, exactly.

From the last stage to the first, against what holds for every interleaving:

- of each bucket, rows are numbered *k* = 1, 2, ..., K, each number once; folded in this order by the sequential model
  (``pipeline.after``), they give each row's top ten and its link of the chain, character for character;
- a row is in the bucket that its *n* and *m* decide;
- of each count *n*, places are numbered *m* = 1, 2, ..., M, each once, M being how many words occur that often;
- of each word, the counts *n* are 1, 2, ..., N, each once, N being how often it occurs in the input (a batch count);
- each row *i* of the input is there once, with its word; so nothing is lost, doubled or made up;
- channels keep their order: of a word, the rows of one reader were counted in the order of the input; of a bucket, the
  rows of one count came in the order of their places. A rescale deals the rest of the input anew, to readers of another
  parallelism; where one comes again, its readers may go back once more: to rows that others had left.

Rules: pure. Damage that leads to more damage is reported each time; of a bucket whose fold breaks, the first row is.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from experiments.exactness.pipeline import NOTHING, READERS, Ranked, after, bucket_of

EXAMPLES = 3


@dataclass
class Findings:
    """What is wrong: kind of damage -> how often, and the first few of each kind in words."""

    rows: int = 0
    damage: dict[str, int] = field(default_factory=dict)
    examples: dict[str, list[str]] = field(default_factory=dict)

    @property
    def exact(self) -> bool:
        return not self.damage

    def note(self, kind: str, example: str, times: int = 1) -> None:
        self.damage[kind] = self.damage.get(kind, 0) + times
        known = self.examples.setdefault(kind, [])
        if len(known) < EXAMPLES:
            known.append(example)


def check(rows: Iterable[Ranked], words: Sequence[str], parallelisms: Sequence[int]) -> Findings:
    """``rows``: the whole output, in any order; ``words``: the input; ``parallelisms``: that at the start, and all that
    may have followed."""
    rows = list(rows)
    findings = Findings(len(rows))
    times = Counter(words)
    _check_input(rows, words, findings)
    _check_readers(rows, parallelisms, findings)
    _check_words(rows, times, Counter(parallelisms), findings)
    _check_places(rows, times, findings)
    _check_buckets(rows, findings)
    return findings


def _check_input(rows: list[Ranked], words: Sequence[str], findings: Findings) -> None:
    _check_numbers("input: row", [row.i + 1 for row in rows], len(words), "input", findings)
    for row in rows:
        if 0 <= row.i < len(words) and words[row.i] != row.word:
            findings.note("word changed", f"{row}: the input has {words[row.i]!r}")


def _check_readers(rows: list[Ranked], parallelisms: Sequence[int], findings: Findings) -> None:
    for row in rows:
        parallelism, index = divmod(row.reader, READERS)
        if parallelism not in parallelisms or index >= parallelism:
            findings.note("reader made up", f"{row}: number {index} of {parallelism}")


def _check_words(rows: list[Ranked], times: Mapping[str, int], periods: Mapping[int, int], findings: Findings) -> None:
    """``periods``: parallelism -> how often the job may have begun with it."""
    found: defaultdict[str, list[Ranked]] = defaultdict(list)
    for row in rows:
        found[row.word].append(row)
    for word in sorted({*found, *times}):
        counted = sorted(found[word], key=lambda row: row.n)
        _check_numbers(f"word {word!r}: count", [row.n for row in counted], times.get(word, 0), "count", findings)
        by_reader: defaultdict[int, list[int]] = defaultdict(list)
        for row in counted:
            by_reader[row.reader].append(row.i)
        for reader, numbers in sorted(by_reader.items()):
            _check_order(f"word {word!r}", numbers, findings, periods.get(reader // READERS, 1) - 1)


def _check_places(rows: list[Ranked], times: Mapping[str, int], findings: Findings) -> None:
    found: defaultdict[int, list[int]] = defaultdict(list)
    for row in rows:
        found[row.n].append(row.m)
    exactly = Counter(times.values())
    reach, at_least = 0, {}
    for n in range(max(exactly, default=0), 0, -1):
        reach += exactly[n]
        at_least[n] = reach
    for n in sorted({*found, *at_least}):
        _check_numbers(f"count {n}: place", found[n], at_least.get(n, 0), "place", findings)


def _check_buckets(rows: list[Ranked], findings: Findings) -> None:
    buckets: defaultdict[int, list[Ranked]] = defaultdict(list)
    for row in rows:
        buckets[row.bucket].append(row)
        if row.bucket != bucket_of(row.n, row.m):
            findings.note("wrong bucket", f"{row} belongs to bucket {bucket_of(row.n, row.m)}")
    for bucket, taken in sorted(buckets.items()):
        taken.sort(key=lambda row: row.k)
        highest = max(len(taken), taken[-1].k)
        _check_numbers(f"bucket {bucket}: row", [row.k for row in taken], highest, "row", findings)
        for n in sorted({row.n for row in taken}):
            _check_order(f"bucket {bucket}, count {n}", [row.m for row in taken if row.n == n], findings)
        _check_fold(taken, findings)


def _check_fold(taken: list[Ranked], findings: Findings) -> None:
    standing = NOTHING
    for row in taken:
        standing = after(standing, row.i, row.word, row.n, row.m)
        if standing != (row.k, row.top, row.chain):
            findings.note("broken fold", f"{row} does not follow: expected {standing}")
            return


def _check_order(what: str, numbers: list[int], findings: Findings, back: int = 0) -> None:
    """They rise, except for ``back`` times. (Or stay: duplicates are reported elsewhere.)"""
    falls = [(before, number) for before, number in pairwise(numbers) if number < before]
    for before, number in falls[back:]:
        findings.note("out of order", f"{what}: {number} came behind {before}")


def _check_numbers(what: str, numbers: list[int], highest: int, kind: str, findings: Findings) -> None:
    """Each of 1, 2, ..., ``highest`` is there once, and no other."""
    found = Counter(numbers)
    for number in range(1, highest + 1):
        times = found.pop(number, 0)
        if times == 0:
            findings.note(f"{kind} lost", f"{what} {number} is missing")
        elif times > 1:
            findings.note(f"{kind} doubled", f"{what} {number} is there {times} times", times - 1)
    for number, times in sorted(found.items()):
        findings.note(f"{kind} made up", f"{what} {number} cannot be", times)
