"""The simulator in the test suite: clean seeds, the same everywhere, scenarios, and the test of the tester."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import partial
from pathlib import Path
from unittest import mock

import pytest

from flinkplus.protocol.subtask import subtask
from flinkplus.protocol.vocabulary import in_flight
from flinkplus.protocol.vocabulary.ids import ChannelId, CheckpointId, Generation, Seq
from flinkplus.protocol.vocabulary.messages import Message, MessageKind
from flinkplus.runtime.transport.wire.message_format import decode_frame, encode
from tests.simulation.exhaustive import BUNDLED, BUNDLES, WATERMARKS, Search
from tests.simulation.mutation_check import found_by_scenario
from tests.simulation.mutations import MUTATIONS, mutated
from tests.simulation.network import packed, torn, unpacked
from tests.simulation.parameters import FAULTS, Fault, Parameters, draw, lacking
from tests.simulation.recorded import Differs, replay
from tests.simulation.runs import digest, run_many, run_one, shrink
from tests.simulation.scenarios import all_scenarios, play, read
from tests.simulation.world import World

ROOT = Path(__file__).parents[2]
SEEDS = 100
LOOPED = 26
JOINED = 26
RESCALED = 22
SAVED = 22
AT_ONCE = 26
LIVE = 20
TICKED = (19, 25, 27, 41, 44, 45)
"""Seeds in which steps by the time of day are repeated."""
ASKING = range(13, 19)
"""Seeds in which answers are repeated."""
TO_BARRIER = 12
SMALL_BUDGET = 200
"""Seeds for each deliberate fault here; the whole budget is for ``make mutation-check``."""
QUICK = (
    "no_blocking",
    "one_barrier_is_enough",
    "cursors_before_the_barrier",
    "complete_without_the_last",
    "acknowledgements_of_the_dead_count",
    "stale_generation_accepted",
    "gap_accepted",
    "digests_not_told",
    "trimmed_one_too_early",
    "trimmed_when_consumed",
    "determinants_dropped",
    "determinants_not_told",
    "ancestors_passed_on_before_their_turn",
    "let_go_one_checkpoint_too_early",
    "ranges_chosen_anew",
    "ids_forgotten_at_promotion",
    "one_fence_is_enough",
    "zookeeper_not_awaited",
    "versions_that_all_have_count_for_nothing",
    "stable_before_it_is_staged",
    "staged_delta_applied_too_soon",
    "offer_of_a_fenced_head_taken",
    "versions_of_a_fenced_head_offered",
    "staged_before_all_is_held",
    "all_held_with_the_first_file",
    "damaged_files_of_a_dead_process_left_out",
    "inputs_not_fenced",
    "whatever_is_in_flight_is_held",
    "what_was_in_flight_is_never_given_back",
    "what_comes_behind_the_copy_is_not_recorded",
    "what_waits_is_not_recorded",
    "the_last_checkpoint_may_be_unaligned",
    "more_is_overtaken_than_a_snapshot_may_hold",
    "complete_with_the_first_barrier",
    "newest_version_promoted",
    "done_when_the_standby_is_there",
    "what_is_done_is_not_reported",
    "heads_never_leave_a_drained_host",
    "handovers_that_are_called_off_are_not_reported",
    "any_version_makes_do_for_a_base",
    "one_barrier_round_is_enough",
    "logged_and_sent_again",
    "a_loop_ends_after_one_round",
    "records_that_come_round_are_not_told",
    "loops_are_not_waited_for",
    "back_edges_stay_in_memory",
    "how_many_were_taken_is_not_noted",
    "bundles_are_chosen_anew",
    "bundles_are_repeated_in_another_order",
    "bundles_are_repeated_one_channel_at_a_time",
    "bundles_reach_across_barriers",
    "joined_steps_are_logged_before_any_sends",
    "joined_steps_take_one_message_of_each_channel",
    "joined_reads_are_one",
    "joined_steps_are_cut_together",
    "joined_steps_are_repeated_again",
    "bytes_are_not_reported",
    "bytes_in_flight_are_not_counted",
    "consumers_fail_their_producers",
    "nobody_is_given_up",
    "refusals_are_failures_of_ones_own",
    "refusals_are_not_reported",
    "frames_are_cut_inside_messages",
    "only_the_end_of_an_answer_counts",
    "files_of_snapshots_under_way_are_removed",
    "message_ids_lost_on_the_way_to_the_store",
    "message_ids_outlive_the_subtask",
    "message_ids_of_a_newer_version",
    "the_cursor_goes_back",
    "the_cursor_goes_ahead",
    "the_end_is_not_sent_again",
    "slots_keep_the_parallelism_that_they_began_with",
    "deployments_use_the_assignment_of_before",
    "checkpoints_of_another_parallelism_are_fallbacks",
    "a_divided_checkpoint_has_a_number_that_was_used",
    "reserved_slots_join",
    "slots_end_before_the_switch",
    "the_plan_changes_though_the_division_failed",
    "ranges_of_key_groups_overlap",
    "ranges_of_key_groups_leave_gaps",
    "records_of_sources_that_lag_are_left_behind",
    "sources_keep_their_records",
    "rows_that_were_held_back_are_left_behind",
    "event_time_is_left_behind",
    "promises_are_left_behind",
    "the_furthest_promise_counts",
    "cursors_stay_before_what_is_in_flight",
    "barriers_of_savepoints_overtake",
    "checkpoints_of_savepoints_are_dropped",
    "checkpoints_go_on_beside_a_stop",
    "rows_are_stored_without_their_recipe",
    "progress_is_stored_apart_from_rows",
    "rows_of_any_generation_are_stored",
    "recipes_are_trimmed_too_early",
    "repeated_rows_are_written_again",
    "recipes_are_not_read",
    "rows_leave_at_the_first_barrier",
    "rows_leave_behind_their_barrier",
    "recipes_are_read_before_the_sink_is_fenced",
    "snapshots_do_not_wait_for_their_rows",
    "failovers_forget_the_recipe_of_the_deployment",
    "promotions_do_not_wait_for_recipes",
    "places_are_chosen_anew",
    "repeated_reads_do_not_wait",
    "rows_are_logged_and_not_the_choice",
    "joined_reads_are_repeated_in_another_order",
    "idle_sources_are_not_logged",
    "idle_channels_are_not_saved",
    "steps_of_the_clock_are_not_logged",
    "answers_are_not_logged",
    "rows_are_asked_for_while_steps_are_repeated",
    "repeated_answers_are_not_awaited",
    "answers_are_taken_before_they_are_stored",
    "watermarks_overtake_rows_that_wait",
)
"""What is found out within the small budget."""


def test_seeds_are_clean() -> None:
    summary = run_many(range(SEEDS))
    assert not summary.failures, f"{summary.failures[0]}\n{summary.failures[0].parameters.story()}"
    happened = summary.counts
    assert all(happened[kind] for kind in FAULTS), f"these never struck: {[k for k in FAULTS if not happened[k]]}"
    for what in ("failovers", "handovers", "fallbacks", "promotions", "driver_crashes", "trimmed", "stable", "rows"):
        assert happened[what], f"the seeds saw no {what}"
    for what in ("migration_done", "migration_cancelled", "drain", "rehost", "thinned", "moves_begun"):
        assert happened[what], f"the seeds saw no {what} among the moves"
    assert happened["over_budget"], "all that was in flight was within the budget"
    assert happened["frames"], "no message travelled in a frame"


def test_seeds_with_loops_are_clean() -> None:
    summary = run_many(range(LOOPED), drawn=partial(draw, looped=True))
    assert not summary.failures, f"{summary.failures[0]}\n{summary.failures[0].parameters.story()}"
    for what in ("came_round", "rounds", "in_flight", "put_back"):
        assert summary.counts[what], f"the seeds saw no {what}"


def test_seeds_with_joined_steps_are_clean() -> None:
    summary = run_many(range(JOINED), drawn=partial(draw, joined=True))
    assert not summary.failures, f"{summary.failures[0]}\n{summary.failures[0].parameters.story()}"
    for what in ("joined_steps", "joined_reads"):
        assert summary.counts[what], f"the seeds saw no {what}"


def test_seeds_whose_parallelism_changes_are_clean() -> None:
    summary = run_many(range(RESCALED), drawn=partial(draw, rescaled=True))
    assert not summary.failures, f"{summary.failures[0]}\n{summary.failures[0].parameters.story()}"
    for what in ("divided", "rescale_done", "rescale_cancelled", "rescale_back", "at_rescale", "crash_spare"):
        assert summary.counts[what], f"the seeds saw no {what}"


def test_seeds_with_savepoints_are_clean() -> None:
    summary = run_many(range(SAVED), drawn=partial(draw, saved=True))
    assert not summary.failures, f"{summary.failures[0]}\n{summary.failures[0].parameters.story()}"
    for what in ("saved", "savepoint_done", "savepoint_failed", "savepoint_restored", "divided"):
        assert summary.counts[what], f"the seeds saw no {what}"


def test_seeds_whose_rows_are_visible_at_once_are_clean() -> None:
    summary = run_many(range(AT_ONCE), drawn=partial(draw, at_once=True))
    assert not summary.failures, f"{summary.failures[0]}\n{summary.failures[0].parameters.story()}"
    for what in ("transactions", "refused_transactions", "asked", "not_written_again", "fallbacks", "no_table"):
        assert summary.counts[what], f"the seeds saw no {what}"


def test_seeds_with_live_sources_are_clean() -> None:
    summary = run_many(range(LIVE), drawn=partial(draw, live=True))
    assert not summary.failures, f"{summary.failures[0]}\n{summary.failures[0].parameters.story()}"
    for what in ("live_reads", "awaited_rows", "said_idle", "failovers", "fallbacks", "driver_crashes"):
        assert summary.counts[what], f"the seeds saw no {what}"


def test_seeds_with_steps_of_the_clock_are_clean() -> None:
    summary = run_many(TICKED, drawn=partial(draw, ticked=True))
    assert not summary.failures, f"{summary.failures[0]}\n{summary.failures[0].parameters.story()}"
    for what in ("ticks", "repeated_ticks", "failovers"):
        assert summary.counts[what], f"the seeds saw no {what}"


def test_seeds_with_rows_that_wait_for_answers_are_clean() -> None:
    summary = run_many(ASKING, drawn=partial(draw, asking=True))
    assert not summary.failures, f"{summary.failures[0]}\n{summary.failures[0].parameters.story()}"
    for what in ("answers_taken", "answers_repeated", "failovers", "fallbacks", "watermarks"):
        assert summary.counts[what], f"the seeds saw no {what}"


def test_seeds_whose_rows_are_held_back_until_a_barrier_are_clean() -> None:
    summary = run_many(range(TO_BARRIER), drawn=partial(draw, to_barrier=True))
    assert not summary.failures, f"{summary.failures[0]}\n{summary.failures[0].parameters.story()}"
    for what in ("held_to_barrier", "failovers", "fallbacks"):
        assert summary.counts[what], f"the seeds saw no {what}"


@pytest.mark.long
@pytest.mark.parametrize("kinds", [("asking", "ticked"), ("asking", "to_barrier"), ("ticked", "to_barrier")])
def test_seeds_with_two_kinds_of_steps_are_clean(kinds: tuple[str, str]) -> None:
    summary = run_many(range(60), drawn=partial(draw, **dict.fromkeys(kinds, True)))
    assert not summary.failures, f"{summary.failures[0]}\n{summary.failures[0].parameters.story()}"
    seen = {"asking": "answers_repeated", "ticked": "repeated_ticks", "to_barrier": "held_to_barrier"}
    for what in kinds:
        assert summary.counts[seen[what]], f"the seeds saw no {seen[what]}"


def test_a_move_that_waits_is_judged_when_all_is_quiet_and_not_while_there_is_no_room() -> None:
    """Slot 0 comes back on the host that is drained, so nothing can leave that host."""
    drained = (Fault(70, "rehost", 8, 0), Fault(72, "drain", 33, 0))
    world, failure = run_one(Parameters(seed=1, rows=1, read_ms=12, records=12, faults=drained))
    assert failure is None and world is not None and world.ended == "finished"
    assert world.counts["drain_done"] == 0 and world.checks.counts["moves_judged"] > 0
    with mutated("heads_never_leave_a_drained_host"):
        _, failure = run_one(Parameters(seed=1, rows=1, read_ms=12, records=12, faults=(Fault(72, "drain", 33, 0),)))
    assert failure is not None and "drain host1 is under way" in failure.reason


def test_without_faults_nothing_fails_over() -> None:
    for parameters in (*map(draw, range(20)), *(draw(seed, live=True) for seed in range(6))):
        world, failure = run_one(parameters.with_changes(faults=()))
        assert failure is None and world is not None
        assert world.ended == "finished"
        assert world.counts["failovers"] == world.counts["fallbacks"] == world.counts["handovers"] == 0


WITH_DUPLICATES = (35, 55, 99, 136, 137, 173, 189, 247, 274)
"""Seeds in which a message comes twice, in jobs that have a filter."""


@pytest.mark.parametrize(
    ("left_out", "invariants"),
    [(("filter",), set()), (("cursor",), set()), (("filter", "cursor"), {"results", "event time"})],
)
def test_filter_or_cursor_alone_drops_duplicates_and_without_both_there_is_damage(
    left_out: tuple[str, ...], invariants: set[str]
) -> None:
    summary = run_many(WITH_DUPLICATES, len(WITH_DUPLICATES), lambda seed: lacking(draw(seed), left_out))
    assert {failure.kind for failure in summary.failures} == {f"Violation {name}" for name in invariants}
    assert summary.counts["known_ids"] > 0 and (not invariants or len(summary.failures) == len(WITH_DUPLICATES))


def test_without_the_cursor_gaps_are_taken_and_without_digests_other_messages() -> None:
    """What neither the filter nor anything else makes up for."""
    for seed, part, kind in ((231, "cursor", "PeerProtocolError"), (16, "digests", "Violation results")):
        assert run_one(draw(seed))[1] is None
        failure = run_one(lacking(draw(seed), (part,)))[1]
        assert failure is not None and failure.kind == kind


DIGESTS = """
from tests.simulation.parameters import draw
from tests.simulation.runs import digest
print(*(digest(draw(seed)) for seed in range(20)))
"""


@pytest.mark.long
def test_a_seed_gives_the_same_trace_under_any_hash_seed() -> None:
    outputs = []
    for hash_seed in ("0", "4711"):
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(ROOT)}
        command = [sys.executable, "-c", DIGESTS]
        done = subprocess.run(command, env=environment, cwd=ROOT, check=True, capture_output=True, text=True)
        outputs.append(done.stdout.split())
    assert outputs[0] == outputs[1]
    assert len(set(outputs[0])) == 20


def test_a_seed_gives_the_same_trace_again() -> None:
    assert digest(draw(12)) == digest(draw(12)) != digest(draw(13))


@pytest.mark.parametrize("path", all_scenarios(), ids=lambda path: path.stem)
def test_scenario(path: Path) -> None:
    scenario = read(path)
    assert play(scenario) == scenario.expected, "see python -m tests.simulation.scenarios --write"


def test_there_are_scenarios() -> None:
    assert len(all_scenarios()) >= 20


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if at % 12 == 0 else pytest.mark.long) for at, name in enumerate(QUICK)]
)
def test_a_deliberate_fault_is_found_out(name: str) -> None:
    with mutated(name):
        assert run_many(range(SMALL_BUDGET), drawn=MUTATIONS[name].parameters).failures


def test_deliberate_faults_are_undone() -> None:
    for name in MUTATIONS:
        before = vars(MUTATIONS[name].where)[MUTATIONS[name].name]
        with mutated(name):
            assert vars(MUTATIONS[name].where)[MUTATIONS[name].name] is not before
        assert vars(MUTATIONS[name].where)[MUTATIONS[name].name] is before


def test_a_fault_that_the_product_had_is_found_out_by_its_scenario() -> None:
    (path,) = [path for path in all_scenarios() if path.stem.startswith("17-")]
    with mutated("broken_streams_forgotten"), pytest.raises(AssertionError, match="no injected fault explains"):
        play(read(path))


@pytest.mark.parametrize("number", ["45", "46", "55"])
def test_a_consumer_is_told_from_its_producer_however_the_job_recovers(number: str) -> None:
    (path,) = [path for path in all_scenarios() if path.stem.startswith(f"{number}-")]
    with mutated("consumers_fail_their_producers"), pytest.raises(AssertionError, match="counts as failed for what"):
        play(read(path))


@pytest.mark.parametrize("name", [name for name, fault in MUTATIONS.items() if fault.scenario])
def test_a_fault_that_seeds_seldom_see_is_found_out_by_its_scenario(name: str) -> None:
    assert found_by_scenario(name)


def test_a_snapshot_with_too_much_in_flight_is_declined_and_the_job_goes_on() -> None:
    loop = Parameters(stages=3, edges=((0, 1), (1, 2)), loops=((1, 1),), records=60, interval_ms=15, rows=4)
    trace: list[str] = []
    with mock.patch.object(in_flight, "MAX_LOGGED_BYTES", 300):
        world, failure = run_one(loop, trace)
    assert failure is None and world is not None and world.ended == "finished"
    assert any("bytes were in flight on 2:" in line and "Declined" in line for line in trace)
    assert world.counts["failovers"] == world.counts["fallbacks"] == 0


def test_nothing_stands_still_where_barriers_may_overtake_little() -> None:
    drawn = (draw(seed) for seed in range(1_000))
    unaligned = [parameters for parameters in drawn if parameters.aligned_timeout_ms is not None][:60]
    with mock.patch.object(subtask, "MAX_OVERTAKEN_BYTES", 200):
        for parameters in unaligned:
            _, failure = run_one(parameters)
            assert failure is None, f"{failure}\n{parameters.story()}"


def test_checkpoints_as_close_together_as_steps_leave_time_for_work_and_with_a_pause_more_of_it() -> None:
    """Barriers that overtake come before all work, and here three checkpoints are under way all the time."""
    steps = Parameters(stages=3, edges=((0, 1), (1, 2)), rows=2, read_ms=0, work_ms=20, window=2, aligned_timeout_ms=0)
    steps = steps.with_changes(quick_barriers=True)
    taken = {}
    for pause_ms in (0, 100):
        parameters = steps.with_changes(interval_ms=1, max_concurrent=3, min_pause_ms=pause_ms)
        world, failure = run_one(parameters.with_changes(faults=(Fault(5, "watch_late", 0, 5),)))
        assert failure is None and world is not None and world.ended == "finished"
        taken[pause_ms] = world.now_ms, len(world.checks.completions)
    assert taken[100] < taken[0] and 4 * taken[100][1] < taken[0][1], taken


def outcomes(parameters: Parameters) -> tuple[list[str], int]:
    """How the checkpoints of a job ended that has no other trouble, and how many snapshots were unaligned that are a
    part of a complete one."""
    world, failure = run_one(parameters)
    assert failure is None and world is not None and world.ended == "finished"
    assert world.coordinator is not None
    found = [found["cause"] or found["status"] for found in world.coordinator.figures.checkpoints()]
    return found, world.checks.counts["overtaken"]


def test_under_a_backlog_larger_than_the_budget_barriers_wait_and_few_checkpoints_are_given_up() -> None:
    """What will be in flight when a barrier has come in is not known before, so some have to be."""
    line = Parameters(stages=3, edges=((0, 1), (1, 2)), records=60, rows=4, interval_ms=20, read_ms=0, work_ms=8)
    ended: dict[int, list[str]] = {600: [], 60_000: []}
    overtaken = dict.fromkeys(ended, 0)
    for seed in range(12):
        for budget in ended:
            how, unaligned = outcomes(line.with_changes(seed=seed, aligned_timeout_ms=0, in_flight_bytes=budget))
            ended[budget] += how
            overtaken[budget] += unaligned
    assert set(ended[600]) <= {"complete", "over budget"} and 4 * ended[600].count("over budget") < len(ended[600])
    assert set(ended[60_000]) == {"complete"}
    assert 0 < overtaken[600] < overtaken[60_000], "there is room"


def test_loops_have_the_same_budget() -> None:
    loop = Parameters(stages=3, edges=((0, 1), (1, 2)), loops=((1, 1),), records=60, interval_ms=15, rows=4)
    found, _ = outcomes(loop.with_changes(in_flight_bytes=900))
    assert found.count("over budget") >= 3 and found[-1] == "complete"


def test_shrinking_leaves_what_matters() -> None:
    with mutated("determinants_dropped"):
        (failure,) = run_many(range(100)).failures
        smaller = shrink(failure, tries=150)
        assert smaller.kind == failure.kind
        _, again = run_one(smaller.parameters)
        assert again is not None and again.kind == failure.kind
    assert len(smaller.parameters.faults) <= len(failure.parameters.faults)
    assert smaller.parameters.records <= failure.parameters.records
    _, clean = run_one(smaller.parameters)
    assert clean is None


@pytest.mark.long  # `make model-check` searches further
def test_the_small_scope_holds_without_delays() -> None:
    found = Search(seconds=60.0, max_delays=0).run()
    assert not found.failures and not found.out_of_time
    assert found.histories > 100
    with mutated("determinants_dropped"):
        assert Search(seconds=60.0, max_delays=0).run().failures


@pytest.mark.long  # `make model-check` searches further
@pytest.mark.parametrize("scope", [BUNDLES, WATERMARKS], ids=["records", "watermarks"])
def test_the_small_scope_with_bundles_holds_without_delays(scope: Parameters) -> None:
    found = Search(seconds=60.0, max_delays=0, scope=scope).run()
    assert not found.failures and not found.out_of_time
    assert found.histories > 100
    assert min(found.bundled[count] for count in BUNDLED) > 20, found.bundled
    for name in ("bundles_are_chosen_anew", "bundles_are_taken_before_all_messages_came"):
        with mutated(name):
            assert Search(seconds=60.0, max_delays=0, scope=scope).run().failures, name


def test_what_the_machines_did_can_be_repeated(tmp_path: Path) -> None:
    faults = (Fault(30, "crash", 1, 0), Fault(60, "throw", 0, 0))
    world = World(Parameters(seed=5, parallelism=3, records=16, rows=1, faults=faults), record=tmp_path / "record")
    world.run()
    assert world.coordinator is not None and world.coordinator.parts.recorder is not None
    world.coordinator.parts.recorder.close()
    taken = replay(tmp_path / "record")
    assert taken["job"] > 5 and taken["checkpoints"] > 10 and taken["failover"] > 20
    with mutated("zookeeper_not_awaited"), pytest.raises(Differs):
        replay(tmp_path / "record")


def test_torn_frames_of_standbys_can_be_written_and_read() -> None:
    """However little of a payload is left: else the simulated transport itself would make frames that are malformed."""
    message = Message(
        MessageKind.REPLICA, ChannelId(0, 0, 0), Generation(1), Seq(0), CheckpointId(0), records=b"payload"
    )
    for size in range(len(message.records)):
        left = message._replace(records=torn(message.records, size))
        (found,) = decode_frame(b"".join(encode(left, packed(left))))
        assert unpacked(*found).records == message.records[: max(1, size)]
