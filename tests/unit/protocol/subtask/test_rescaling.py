"""The protocol's part of snapshots at another parallelism: channels begin anew, event time stays, totals stay."""

from __future__ import annotations

from flinkplus.protocol.snapshot.handle import OperatorPart, OperatorState
from flinkplus.protocol.subtask.rescaling import least, rescaled, rescaled_part
from flinkplus.protocol.vocabulary.ids import ChannelId


def before(*watermarks: dict[str, int], ended: tuple[str, ...] = (), ended_itself: bool = False) -> list[OperatorState]:
    """Subtasks of a vertex with input edge 4 and output edge 7."""
    return [
        OperatorState(
            inputs={"4:0->0": 17},
            outputs={"7:0->0": 33},
            aborted=(9,),
            ended=ended_itself,
            steps=100 + index,
            clock_ms=5 - index,
            ended_channels=ended,
            watermarks=known,
            rounds={"number": 3},
            reached={"1": 5},
            run=(4, 77),
        )
        for index, known in enumerate(watermarks)
    ]


def test_channels_begin_anew() -> None:
    found = rescaled(before({}, {}), 2, 3, {4: None}, [7], {ChannelId(4, 1, 2): 6, ChannelId(7, 2, 0): 2})
    assert found == OperatorState(
        inputs={"4:0->2": 0, "4:1->2": 6, "4:2->2": 0},
        outputs={"7:2->0": 2, "7:2->1": 0, "7:2->2": 0},
        steps=101,
        clock_ms=5,
    )


def test_a_subtask_that_had_ended_ends_again() -> None:
    for state in (rescaled(before({}, ended_itself=True), index, 2, {4: None}, [7], {}) for index in range(2)):
        assert not state.ended and state.ended_channels == () and state.rounds is None


def test_channels_begin_with_what_their_producers_have_promised() -> None:
    found = rescaled(before({"4:0->0": 99}, {}), 0, 2, {4: 30, 5: None}, [], {})
    assert found.watermarks == {"4:0->0": 30, "4:1->0": 30}


def test_a_promise_that_is_missing_stays_missing() -> None:
    assert least([]) is None and least([3, None]) is None and least([3, 2]) == 2


def test_totals_stay_and_maxima_are_not_added() -> None:
    parts = [
        OperatorPart(rows_in=n, rows_out=10 * n, own={"late_rows": n, "max_late_ms": n}, watermark_ms=n)
        for n in (1, 2, 4)
    ]
    for parallelism in (1, 2, 3, 5):
        found = [rescaled_part(parts, [False] * 3, index, parallelism) for index in range(parallelism)]
        assert (sum(p.rows_in for p in found), sum(p.rows_out for p in found)) == (7, 70)
        assert sum(p.own.get("late_rows", 0) for p in found) == 7
        assert max(p.own.get("max_late_ms", 0) for p in found) == 4
        assert {p.watermark_ms for p in found} == {1}
    assert rescaled_part(parts, [True, False, False], 0, 1).watermark_ms == 2
    assert rescaled_part(parts, [True] * 3, 0, 1).watermark_ms == 4
    assert rescaled_part([parts[0], OperatorPart(rows_in=0, rows_out=0)], [False] * 2, 0, 1).watermark_ms is None
