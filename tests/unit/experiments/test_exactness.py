"""The check of exactness finds whatever is damaged, and nothing else; the plan of failures; the document."""

from __future__ import annotations

import random
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.table import Table

from experiments.exactness.check import Findings, check
from experiments.exactness.experiment import EXPERIMENT, Settings
from experiments.exactness.pipeline import (
    NOTHING,
    TOP_ROWS,
    Input,
    Ranked,
    Reader,
    Standing,
    after,
    bucket_of,
    reader_of,
    rows_of,
)
from experiments.exactness.strikes import EXCEPTION, SIGKILL, STAGES, Case, Strike
from flinkplus.errors import ConfigurationError
from flinkplus.operators.base.operator import OperatorContext

WORDS = Input(seed=3, vocabulary=30)
ROWS = 400
SOURCES = 4
COUNTS = Counter(WORDS.words(ROWS))


def history(seed: int, parallelisms: Sequence[int] = (SOURCES,)) -> list[Ranked]:
    """The output of one sequential run; ``seed`` chooses how sources and stages, of one subtask each, interleave.

    ``parallelisms``: of the sources, one after the other; each time the rest of the input is dealt anew.
    """
    chance = random.Random(seed)
    left, readers = set(range(ROWS)), dict[int, int]()
    later = list(parallelisms)
    counted: Counter[str] = Counter()
    placed: Counter[int] = Counter()
    standings: dict[int, Standing] = {}
    sources: list[deque[int]] = []
    to_place: dict[int, deque[Any]] = defaultdict(deque)  # by the subtask that has counted them
    to_rank: dict[int, deque[Any]] = defaultdict(deque)  # by the subtask that has placed them
    found = []
    while later or any(sources) or any(to_place.values()) or any(to_rank.values()):
        if later and len(left) <= ROWS * len(later) // len(parallelisms):
            parallelism = later.pop(0)
            rest = sorted(left)
            sources = [deque(rest[source::parallelism]) for source in range(parallelism)]
            readers |= {i: reader_of(parallelism, source) for source, rows in enumerate(sources) for i in rows}
        stages = [sources, to_place.values(), to_rank.values()]
        stage = chance.choice([at for at, queues in enumerate(stages) if any(queues)])
        queue: deque[Any] = chance.choice([queue for queue in stages[stage] if queue])
        taken = queue.popleft()
        if stage == 0:
            left.remove(taken)
            word = WORDS.word(taken)
            counted[word] += 1
            to_place[len(word)].append((taken, word, counted[word]))
        elif stage == 1:
            i, word, n = taken
            placed[n] += 1
            to_rank[n % 3].append((i, word, n, placed[n]))
        else:
            i, word, n, m = taken
            bucket = bucket_of(n, m)
            standings[bucket] = after(standings.get(bucket, NOTHING), i, word, n, m)
            k, top, chain = standings[bucket]
            found.append(Ranked(bucket, k, i, word, n, m, top, chain, readers[i]))
    return found


def found_in(rows: list[Ranked], parallelisms: Sequence[int] = (SOURCES,)) -> Findings:
    return check(rows, WORDS.words(ROWS), parallelisms)


@pytest.mark.parametrize("seed", range(5))
def test_whatever_the_interleaving_the_output_is_exact(seed: int) -> None:
    rows = history(seed)
    assert found_in(rows) == Findings(ROWS)
    random.Random(seed).shuffle(rows)
    assert found_in(rows).exact, "files tell no order"


def test_interleavings_differ_nearly_everywhere() -> None:
    """Else a mixture of two of them would be hard to tell from one."""
    first, second = set(history(1)), set(history(2))
    assert len(first & second) < ROWS // 10


def test_nothing_is_exact_when_nothing_was_read() -> None:
    assert check([], [], [SOURCES]).exact
    assert check([], ["a", "a"], [SOURCES]).damage == {"input lost": 2, "count lost": 2, "place lost": 2}
    found = check(history(1), [], [SOURCES]).damage
    assert found == dict.fromkeys(("input made up", "count made up", "place made up"), ROWS)


def refolded(rows: list[Ranked]) -> list[Ranked]:
    """The rows as they would be if the last stage had taken them as they stand: only the stages before it are wrong."""
    taken: defaultdict[int, list[Ranked]] = defaultdict(list)
    for row in rows:
        taken[row.bucket].append(row)
    found = []
    for bucket, in_bucket in taken.items():
        standing = NOTHING
        for row in sorted(in_bucket, key=lambda row: row.k):
            standing = after(standing, row.i, row.word, row.n, row.m)
            found.append(Ranked(bucket, standing[0], row.i, row.word, row.n, row.m, *standing[1:], row.reader))
    return found


def lose_one(rows: list[Ranked]) -> list[Ranked]:
    return [row for at, row in enumerate(rows) if at != 200]


def lose_the_last_of_a_bucket(rows: list[Ranked]) -> list[Ranked]:
    last = max((row for row in rows if row.bucket == 4), key=lambda row: row.k)
    return [row for row in rows if row != last]


def lose_a_bucket(rows: list[Ranked]) -> list[Ranked]:
    return [row for row in rows if row.bucket != 4]


def double_one(rows: list[Ranked]) -> list[Ranked]:
    return [*rows, rows[200]]


def commit_a_file_twice(rows: list[Ranked]) -> list[Ranked]:
    return [*rows, *rows[100:150]]


def of_another_word(rows: list[Ranked]) -> list[Ranked]:
    return [*rows[:200], rows[200]._replace(word="w-none"), *rows[201:]]


def swap_two_words(rows: list[Ranked]) -> list[Ranked]:
    """Two words that reached the same count change places."""
    first = next(row for row in rows if row.n == 2)
    second = next(row for row in rows if row.n == 2 and row.word != first.word)
    swapped = {first: first._replace(word=second.word, i=second.i), second: second._replace(word=first.word, i=first.i)}
    return [swapped.get(row, row) for row in rows]


def swap_two_occurrences(rows: list[Ranked]) -> list[Ranked]:
    """The first stage has taken two rows of a source in the wrong order; the stages behind it do right."""
    word = max(COUNTS, key=lambda word: COUNTS[word])
    first, second = [row for row in rows if row.word == word and row.i % SOURCES == 1][:2]
    swapped = {first: first._replace(i=second.i), second: second._replace(i=first.i)}
    return refolded([swapped.get(row, row) for row in rows])


def swap_two_places(rows: list[Ranked]) -> list[Ranked]:
    """The last stage has taken two rows of a subtask of the stage before in the wrong order."""
    in_order = [row for row in sorted(rows, key=lambda row: row.k) if (row.bucket, row.n) == (bucket_of(1, 1), 1)]
    first, second = in_order[:2]
    swapped = {first: first._replace(m=second.m), second: second._replace(m=first.m)}
    return refolded([swapped.get(row, row) for row in rows])


def change_a_word(rows: list[Ranked]) -> list[Ranked]:
    """Two rows of different words have each other's number, all else being as it was."""
    first, second = rows[0], next(row for row in rows if row.word != rows[0].word)
    swapped = {first: first._replace(i=second.i), second: second._replace(i=first.i)}
    return refolded([swapped.get(row, row) for row in rows])


def continue_another_history(rows: list[Ranked]) -> list[Ranked]:
    """In each bucket, the first half of one history and the second half of another."""
    half = {bucket: times // 2 for bucket, times in Counter(row.bucket for row in rows).items()}
    later = [row for row in history(2) if row.k > half[row.bucket]]
    return [row for row in rows if row.k <= half[row.bucket]] + later


def one_bucket_of_another_history(rows: list[Ranked]) -> list[Ranked]:
    """A last stage that is right by itself, after stages that told it something else than they told the others."""
    return [row for row in rows if row.bucket != 4] + [row for row in history(2) if row.bucket == 4]


def break_the_chain(rows: list[Ranked]) -> list[Ranked]:
    return [*rows[:200], rows[200]._replace(chain="0123456789abcdef"), *rows[201:]]


def change_a_top(rows: list[Ranked]) -> list[Ranked]:
    row = rows[-1]
    head, _, tail = row.top.partition(",")
    return [*rows[:-1], row._replace(top=f"{tail},{head}")]


def swap_two_rows_in_a_bucket(rows: list[Ranked]) -> list[Ranked]:
    first, second = sorted((row for row in rows if row.bucket == 4), key=lambda row: row.k)[5:7]
    swapped = {first: first._replace(k=second.k), second: second._replace(k=first.k)}
    return [swapped.get(row, row) for row in rows]


def skip_a_number(rows: list[Ranked]) -> list[Ranked]:
    return [row._replace(k=row.k + 1) if row.bucket == 4 and row.k > 6 else row for row in rows]


def into_another_bucket(rows: list[Ranked]) -> list[Ranked]:
    return [row._replace(bucket=5) if row.bucket == 4 else row for row in rows]


def skip_a_count(rows: list[Ranked]) -> list[Ranked]:
    """The first stage goes on one too far; the stages behind it do right by what they are given."""
    word = max(COUNTS, key=lambda word: COUNTS[word])
    return refolded([row._replace(n=row.n + 1) if row.word == word and row.n >= 5 else row for row in rows])


def lose_before_the_last_stage(rows: list[Ranked]) -> list[Ranked]:
    return refolded(lose_one(rows))


def double_before_the_last_stage(rows: list[Ranked]) -> list[Ranked]:
    row = rows[200]
    return refolded([*rows[:200], row, row, *rows[201:]])


def lose_before_all_stages(rows: list[Ranked]) -> list[Ranked]:
    """A word less in the input, and all that follows from it: a consistent history of something else."""
    word = max(COUNTS, key=lambda word: COUNTS[word])
    gone = next(row for row in rows if (row.word, row.n) == (word, COUNTS[word]))
    return refolded([row for row in rows if row != gone])


DAMAGE: dict[Callable[[list[Ranked]], list[Ranked]], set[str]] = {
    lose_one: {"count lost", "place lost", "row lost", "broken fold"},
    lose_the_last_of_a_bucket: {"count lost", "place lost"},
    lose_a_bucket: {"count lost", "place lost"},
    double_one: {"count doubled", "place doubled", "row doubled", "broken fold"},
    commit_a_file_twice: {"count doubled", "place doubled", "row doubled", "broken fold"},
    of_another_word: {"count lost", "count made up", "broken fold"},
    swap_two_words: {"broken fold"},
    swap_two_occurrences: {"out of order"},
    swap_two_places: {"out of order"},
    change_a_word: {"word changed"},
    continue_another_history: {"count lost", "count doubled", "broken fold"},
    one_bucket_of_another_history: {"count lost", "count doubled"},
    break_the_chain: {"broken fold"},
    change_a_top: {"broken fold"},
    swap_two_rows_in_a_bucket: {"broken fold"},
    skip_a_number: {"row lost", "broken fold"},
    into_another_bucket: {"wrong bucket", "row doubled", "broken fold"},
    skip_a_count: {"count lost", "count made up", "place lost"},
    lose_before_the_last_stage: {"count lost", "place lost"},
    double_before_the_last_stage: {"count doubled", "place doubled"},
    lose_before_all_stages: {"count lost", "place lost"},
}


def swap_two_occurrences_of_the_last_reader(rows: list[Ranked]) -> list[Ranked]:
    """As ``swap_two_occurrences``, by a subtask that came with the last rescale."""
    word = max(COUNTS, key=lambda word: COUNTS[word])
    first, second = [row for row in rows if row.word == word and row.reader == rows[-1].reader][-2:]
    swapped = {first: first._replace(i=second.i), second: second._replace(i=first.i)}
    return refolded([swapped.get(row, row) for row in rows])


@pytest.mark.parametrize("parallelisms", [(4, 3), (4, 1, 6), (4, 2, 4)])
def test_rescales_leave_the_output_exact(parallelisms: tuple[int, ...]) -> None:
    for seed in range(3):
        assert found_in(history(seed, parallelisms), parallelisms) == Findings(ROWS)
    damage = found_in(history(1, parallelisms), parallelisms[:1]).damage
    assert damage.keys() <= {"reader made up", "out of order"} and damage, "no rescale was requested"
    for hurt in (lose_one, double_one, swap_two_words, one_bucket_of_another_history, skip_a_count):
        assert not found_in(hurt(history(1, parallelisms)), parallelisms).exact, hurt


def test_a_reader_that_a_rescale_has_made_keeps_the_order() -> None:
    rows = history(1, (4, 3))
    assert found_in(swap_two_occurrences_of_the_last_reader(rows), (4, 3)).damage.keys() == {"out of order"}


def test_a_reader_that_comes_again_may_go_back_once() -> None:
    """To rows that others had left; twice is a fault."""
    rows = [i for i in range(ROWS) if WORDS.word(i) == max(COUNTS, key=lambda word: COUNTS[word])][:5]

    def out_of_order(order: list[int], parallelisms: list[int]) -> int:
        read = [Ranked(0, 0, rows[at], "w", at, 0, "", "", reader_of(2, 0)) for at in order]
        read = [row._replace(n=n) for n, row in enumerate(read, 1)]
        return check(read, ["w"] * 5, parallelisms).damage.get("out of order", 0)

    assert out_of_order([0, 3, 1, 2, 4], [2, 3, 2]) == 0
    assert out_of_order([0, 3, 1, 2, 4], [2, 3]) == 1
    assert out_of_order([0, 3, 1, 4, 2], [2, 3, 2]) == 1


def test_the_reader_is_in_every_row() -> None:
    import pyarrow as pa

    schema = pa.schema({"word": pa.string(), "i": pa.int64()})
    batch = pa.record_batch([["a", "b"], [1, 2]], schema=schema)
    operator = Reader("reader")
    (found,) = operator.create(OperatorContext("reader", "words[1]", 1, 3, schema)).process(batch)
    assert found.schema == operator.output_schema(schema)
    assert found.column("reader").to_pylist() == [reader_of(3, 1)] * 2


@pytest.mark.parametrize("hurt", DAMAGE, ids=lambda hurt: hurt.__name__)
def test_damage_is_found(hurt: Callable[[list[Ranked]], list[Ranked]]) -> None:
    findings = found_in(hurt(history(1)))
    assert not findings.exact
    assert findings.damage.keys() >= DAMAGE[hurt], findings.damage
    assert all(0 < len(findings.examples[kind]) <= 3 for kind in findings.damage)


@pytest.mark.parametrize("first", [pytest.param(first, marks=pytest.mark.long if first else []) for first in range(8)])
def test_any_row_that_is_lost_doubled_or_changed_is_found(first: int) -> None:
    rows = history(1)
    for at, row in list(enumerate(rows))[first::8]:
        others = rows[:at] + rows[at + 1 :]
        changed = [row._replace(n=row.n + 1), row._replace(m=row.m + 1), row._replace(k=row.k + 1)]
        for hurt in ([], [row, row], *([one] for one in changed)):
            assert not found_in(others + hurt).exact, row


def test_the_top_is_the_model_of_an_order_sensitive_function() -> None:
    standing = NOTHING
    for word, n in (("a", 3), ("b", 3), ("c", 5), ("a", 2)):
        standing = after(standing, 0, word, n, 1)
    assert standing[:2] == (4, "c:5,b:3,a:2")
    for number in range(TOP_ROWS):
        standing = after(standing, 0, f"x{number}", 9, 1)
    assert standing[1] == ",".join(f"x{number}:9" for number in range(TOP_ROWS))
    one = after(after(NOTHING, 0, "a", 3, 1), 1, "b", 3, 2)
    other = after(after(NOTHING, 1, "b", 3, 2), 0, "a", 3, 1)
    assert one[1] != other[1] and one[2] != other[2]


def test_the_input_depends_on_the_row_alone() -> None:
    assert [WORDS(i) for i in range(300)] == list(zip(WORDS.words(300), range(300), strict=True))
    assert len(COUNTS) > 20
    assert Input(4, 30).words(ROWS) != WORDS.words(ROWS)
    assert COUNTS.most_common(1)[0][1] > 3 * sorted(COUNTS.values())[len(COUNTS) // 2]


def test_rows_of_a_table() -> None:
    import pyarrow as pa

    rows = history(1)[:3]
    table = pa.table({name: [getattr(row, name) for row in rows] for name in reversed(Ranked._fields)})
    assert list(rows_of(table)) == rows


# --- the plan


CASES = Settings(runs=300).cases()


def test_the_same_seed_gives_the_same_runs() -> None:
    assert Settings(runs=300).cases() == CASES
    assert Settings(runs=100, first=200).cases() == CASES[200:]
    assert Settings(runs=300, seed=2).cases() != CASES
    assert Settings(runs=300, without=("filter",)).cases() == CASES, "what is compared is hurt in the same way"
    assert len({case.seed for case in CASES}) == 300


def test_one_two_and_three_failures_at_once_and_apart() -> None:
    kinds = Counter((len(case.strikes), case.apart_s) for case in CASES)
    assert kinds == {(1, 0.0): 100, (2, 0.0): 50, (2, 0.05): 50, (3, 0.0): 50, (3, 0.05): 50}
    assert all(case.rows * 0.2 < case.at_row < case.rows * 0.65 for case in CASES if not case.rescales)


def test_failures_lie_everywhere_and_beside_each_other() -> None:
    strikes = [strike for case in CASES for strike in case.strikes]
    assert {(strike.stage, strike.index) for strike in strikes} == {(s, i) for s in STAGES for i in range(4)}
    ways = Counter((case.apart_s > 0, strike.where) for case in CASES for strike in case.strikes[1:])
    assert {where for _, where in ways} == {"downstream", "beside", "across", "again"}
    assert min(ways.values()) > 20 and (False, "again") not in ways
    share = sum(strike.kind == SIGKILL for strike in strikes) / len(strikes)
    assert 0.55 < share < 0.75
    producers = [
        (first, second)
        for case in CASES
        for first, second in zip(case.strikes, case.strikes[1:], strict=False)
        if second.where == "downstream"
    ]
    assert all(STAGES.index(second.stage) == STAGES.index(first.stage) + 1 for first, second in producers)
    assert any(first.index == second.index for first, second in producers)
    assert any(first.index != second.index for first, second in producers)


def test_nobody_is_hurt_twice_in_a_way_that_does_not_count() -> None:
    for case in CASES:
        raised = [(strike.stage, strike.index) for strike in case.strikes if strike.kind == EXCEPTION]
        assert len(set(raised)) == len(raised)
        killed = [strike.index for strike in case.strikes if strike.kind == SIGKILL]
        assert case.apart_s or len(set(killed)) == len(killed)
        assert len(set(killed)) < 4, "somebody must live for a failover to be possible"


@pytest.mark.parametrize("parallelism", [1, 2])
def test_few_slots(parallelism: int) -> None:
    cases = Settings(runs=60, parallelism=parallelism, replicas=parallelism).cases()
    assert all(1 <= len(case.strikes) <= 3 for case in cases)
    assert all(strike.index < parallelism for case in cases for strike in case.strikes)


def test_the_input_lasts_beyond_the_failures() -> None:
    for case in [*CASES, *Settings(apart=0.5).cases()]:
        left_s = (case.rows - case.at_row) / case.rate - case.apart_s * (len(case.strikes) - 1)
        assert left_s > 0.8


def test_more_input_is_behind_all_else() -> None:
    for case, longer in zip(CASES, Settings(runs=300, more_s=5.0).cases(), strict=True):
        assert longer == replace(case, rows=longer.rows)
        assert longer.rows == pytest.approx(case.rows + 5.0 * case.rate, abs=1)


def test_settings_that_no_run_would_accept(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="checkpoint_interval"):
        EXPERIMENT.run(Settings(interval=0.001), tmp_path / "found.json", tmp_path)
    assert Settings(without=("filter",)).options()["faults"] == ("without:filter",)
    assert Settings().options()["faults"] == ()


# --- the document


def made_up_run(case: Case, **figures: Any) -> dict[str, Any]:
    recovery = {"mode": "standby", "subtasks": ["count[1]"], "recovery_ms": 20.0}
    known = {
        "run": case.run,
        "strikes": [strike.__dict__ for strike in case.strikes],
        "rescales": [rescale.__dict__ for rescale in case.rescales],
        "struck": [{"met_rescale": False}],
        "requests": [],
        "rescaled": [],
        "apart_s": case.apart_s,
        "rows": 100,
        "exact": True,
        "damage": {},
        "failovers": 1,
        "handovers": 1,
        "fallbacks": 0,
        "fallback_reasons": [],
        "recoveries": [recovery],
        "error": None,
    }
    return known | figures


def test_the_document_and_the_table(tmp_path: Path) -> None:
    document = EXPERIMENT.document(Settings(runs=4), tmp_path / "found.json")
    cases = [replace(case, rescales=()) for case in CASES[:4]]
    document.add(made_up_run(cases[0]))
    document.add(made_up_run(cases[1], fallbacks=1, fallback_reasons=["no standby"]))
    document.add(made_up_run(cases[2], exact=False, damage={"count lost": 3}))
    document.add(made_up_run(cases[3], exact=False, error="JobFailed: for this test", recoveries=[]))
    *_, whole = document.content["summary"]
    assert (whole["runs"], whole["exact"], whole["local"], whole["rollback"]) == (4, 2, 1, 1)
    assert all(row["runs"] == row["exact"] + row["wrong"] + row["failed"] for row in document.content["summary"])
    assert (whole["wrong"], whole["failed"], whole["rows"], whole["recovery_ms_median"]) == (1, 1, 400, 20.0)
    assert [(row["failures"], row["runs"]) for row in document.content["summary"]] == [
        (1, 2),
        (2, 1),
        (3, 1),
        (None, 4),
    ]
    assert document.content["damage"] == {"count lost": 3}
    table, *lines = EXPERIMENT.tables(document.content)
    assert isinstance(table, Table) and table.row_count == 4
    assert lines == [
        "run 2: count lost: 3",
        "run 3: JobFailed: for this test",
        "rollback in 1 runs: no standby",
        "count lost: 3 in all",
    ]
    hurt, *_ = EXPERIMENT.tables(document.content | {"parameters": {"without": ["filter"]}})
    assert isinstance(hurt, Table) and "without filter" in str(hurt.title)


def test_a_strike_names_its_subtask() -> None:
    assert Strike(SIGKILL, "count", 2).subtask == "count[2]"
