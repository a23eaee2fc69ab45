"""What users type: subtasks, kills, faults, options."""

from __future__ import annotations

import argparse
import os

import pytest

from flinkplus.cli.wordcount import Kill, parse_kill
from flinkplus.config import Options, conf_key, options_from
from flinkplus.errors import ConfigurationError, PeerProtocolError
from flinkplus.graph import JobGraph, Node
from flinkplus.operators.keyed.keyed import Count
from flinkplus.operators.rows.tokenize import Tokenize
from flinkplus.protocol.vocabulary.ids import SubtaskId
from flinkplus.runtime.control.names import check_subtask, find_subtask, parse_subtask
from flinkplus.runtime.faults.points import Faults, check_point, left_out, parse_fault
from flinkplus.runtime.job.checks import check_faults
from flinkplus.sinks.discard import DiscardSink
from flinkplus.sources.text import SCHEMA, TextFiles


def wordcount_graph() -> JobGraph:
    graph = JobGraph()
    source = TextFiles(name="lines", path="nowhere")
    tokenize, count = Tokenize("tokenize", "value", "word"), Count("count", ("word",))
    words = tokenize.output_schema(SCHEMA)
    counts = count.output_schema(words)
    lines = graph.add(Node("lines", "source", source, SCHEMA))
    tokens = graph.add(Node("tokenize", "operator", tokenize, words), lines)
    counted = graph.add(Node("count", "operator", count, counts))
    graph.link(tokens, counted, ("word",))
    graph.add(Node("out", "sink", DiscardSink("out"), counts), counted)
    return graph


def test_vertices_are_cut_at_exchanges() -> None:
    graph = wordcount_graph().fuse()
    assert [(v.name, v.is_source, v.inputs, v.outputs) for v in graph.vertices] == [
        ("lines+tokenize", True, (), (0,)),
        ("count+out", False, (0,), ()),
    ]
    assert graph.fingerprint(2) != graph.fingerprint(3)
    assert graph.fingerprint(2) == wordcount_graph().fuse().fingerprint(2)


def test_the_shape_says_what_the_fingerprint_is_of() -> None:
    graph = wordcount_graph().fuse()
    assert graph.shape(2) == {
        "max_parallelism": "2",
        "source 'lines'": "TextFiles of (value string)",
        "operator 'tokenize'": "Tokenize of (word string)",
        "operator 'count'": "Count of (word string, count int64)",
        "sink 'out'": "DiscardSink of (word string, count int64)",
        "input of 'tokenize'": "lines",
        "input of 'out'": "count",
        "input of 'count'": "tokenize by hash of word",
    }


def test_a_graph_without_a_sink_or_with_a_name_twice_is_refused() -> None:
    graph = JobGraph()
    graph.add(Node("lines", "source", TextFiles(name="lines", path="nowhere"), SCHEMA))
    with pytest.raises(ConfigurationError, match="no sink"):
        graph.fuse()
    with pytest.raises(ConfigurationError, match="two operators are called 'lines'"):
        graph.add(Node("lines", "source", TextFiles(name="lines", path="nowhere"), SCHEMA))
    with pytest.raises(ConfigurationError, match="operator name"):
        graph.add(Node("a+b", "source", TextFiles(name="a+b", path="nowhere"), SCHEMA))


@pytest.mark.parametrize("text", ["count:1", "count[1]", "out:1", "count+out[1]"])
def test_a_subtask_answers_to_each_of_its_operators(text: str) -> None:
    assert find_subtask(text, wordcount_graph().fuse(), 2) == SubtaskId("count+out", 1)


@pytest.mark.parametrize(("text", "says"), [("count", "OPERATOR:INDEX"), ("count:2", "0 to 1"), ("kount:0", "lines")])
def test_what_is_no_subtask_is_said(text: str, says: str) -> None:
    with pytest.raises(ConfigurationError, match=says):
        find_subtask(text, wordcount_graph().fuse(), 2)


def test_names_on_the_wire() -> None:
    subtask = SubtaskId("a+b", 12)
    assert parse_subtask(str(subtask)) == subtask
    for text in ("a", "a[", "a[]", "a[x]", "[1"):
        with pytest.raises(PeerProtocolError):
            parse_subtask(text)


def test_kills() -> None:
    assert parse_kill("count:1@4") == Kill("count:1", 4.0)
    assert parse_kill("count[1]@0.25") == Kill("count[1]", 0.25)
    for text in ("count:1", "count:1@", "count:1@soon", "@4"):
        with pytest.raises(argparse.ArgumentTypeError):
            parse_kill(text)


def test_a_fault_strikes_once_at_its_count_in_the_first_generation(monkeypatch: pytest.MonkeyPatch) -> None:
    struck: list[int] = []
    monkeypatch.setattr(os, "kill", lambda pid, number: struck.append(number))
    faults = Faults(("upload:count[1]#2",), first_generation=1)
    for generation, subtask in ((1, "count+out[0]"), (1, "count+out[1]"), (2, "count+out[1]")):
        faults.reach("upload", generation, subtask)
    assert not struck
    for _ in range(3):
        faults.reach("upload", 1, "count+out[1]")
    assert len(struck) == 1


def test_a_fault_of_the_coordinator_calls_its_strike() -> None:
    struck: list[str] = []
    faults = Faults(("commit:count[0]",), first_generation=3)
    faults.reach("commit", 3, strike=struck.append)
    faults.reach("commit", 3, strike=struck.append)
    assert struck == ["count[0]"]


def test_a_fault_on_order_strikes_once_in_any_generation() -> None:
    struck: list[str] = []
    faults = Faults((), first_generation=1)
    faults.arm("staged", "count+out[1]")
    faults.arm("commit", "count+out[0]")
    for point, subtask in (("upload", "count+out[1]"), ("staged", "count+out[0]")):
        faults.reach(point, 7, subtask, struck.append)
    assert struck == []
    for _ in range(2):
        faults.reach("staged", 7, "count+out[1]", struck.append)
        faults.reach("commit", 8, strike=struck.append)
    assert struck == ["count+out[1]", "count+out[0]"]


def test_a_point_that_there_is_not_is_said() -> None:
    check_point("staged")
    with pytest.raises(ConfigurationError, match=r"'stagged' is not a fault point; the points are: start, trigger, "):
        check_point("stagged")


def test_a_typo_is_answered_with_what_may_have_been_meant() -> None:
    graph = wordcount_graph().fuse()
    for name in ("cuont:1", "cuont[1]"):
        with pytest.raises(ConfigurationError, match=r"no operator is called 'cuont'.*; did you mean 'count'\?"):
            find_subtask(name, graph, 2)
        with pytest.raises(ConfigurationError, match=r"no operator is called 'cuont'.*; did you mean 'count'\?"):
            check_subtask(name, ("lines", "count"), 2)
    with pytest.raises(ConfigurationError, match=r"did you mean 'staged'\?"):
        check_point("stagged")
    with pytest.raises(ConfigurationError, match=r"did you mean 'upload'\?"):
        parse_fault("uplaod:count[0]")


def test_a_fault_that_can_strike_nothing_is_refused_before_the_job_starts() -> None:
    graph = wordcount_graph().fuse()
    check_faults(graph, options_from({}, {"faults": ("end:count[1]", "without:filter", "end:count+out[0]")}))
    with pytest.raises(ConfigurationError, match=r"no operator is called 'cuont'.*did you mean 'count'"):
        check_faults(graph, options_from({}, {"faults": ("end:cuont[1]",)}))
    with pytest.raises(ConfigurationError, match="'count' has subtasks 0 to 1"):
        check_faults(graph, options_from({}, {"faults": ("end:count[2]",)}))


@pytest.mark.parametrize("text", ["upload", "upload:count", "nowhere:count[0]", "upload:count[0]#x"])
def test_what_is_no_fault_is_said(text: str) -> None:
    with pytest.raises(ConfigurationError, match="is not a fault"):
        parse_fault(text)


def test_parts_of_the_protocol_that_a_job_does_without() -> None:
    texts = ("without:filter", "end:count[1]")
    assert left_out(texts) == {"filter"} and left_out(()) == left_out(("end:count[1]",)) == frozenset()
    Faults(texts, first_generation=1).reach("end", 1, "count[0]")  # they strike nobody
    with pytest.raises(
        ConfigurationError, match="can be left out are: determinants, bundles, digests, filter, cursor, suppression"
    ):
        Faults(("without:brakes",), first_generation=1)


def test_options_from_conf_and_arguments() -> None:
    conf = {"spark.flinkplus.checkpointInterval": "0.5", "spark.flinkplus.parallelism": "3", "spark.app.name": "x"}
    options = options_from(conf, {"parallelism": 4})
    assert (options.checkpoint_interval, options.parallelism) == (0.5, 4)
    assert options_from({"spark.flinkplus.checkpointInterval": "none"}, {}).checkpoint_interval is None
    assert options_from({"spark.flinkplus.faults": "start:a[0], end:a[1]"}, {}).faults == ("start:a[0]", "end:a[1]")
    assert conf_key("max_slot_losses") == "spark.flinkplus.maxSlotLosses"


@pytest.mark.parametrize(
    ("conf", "given", "says"),
    [
        ({}, {"paralelism": 2}, "unknown option 'paralelism'"),
        ({"spark.flinkplus.paralelism": "2"}, {}, "unknown configuration key"),
        ({"spark.flinkplus.parallelism": "two"}, {}, "must be a number"),
        ({}, {"parallelism": 0}, "parallelism must be a whole number from 1"),
        ({}, {"parallelism": True}, "parallelism"),
        ({}, {"checkpoint_interval": -1}, "checkpoint_interval"),
        ({}, {"recovery": "magic"}, "recovery must be one of"),
        ({}, {"encoding_errors": "ignore"}, "encoding_errors"),
        ({}, {"faults": "start:a[0]"}, "faults must be a sequence"),
    ],
)
def test_wrong_options_are_named(conf: dict[str, str], given: dict[str, object], says: str) -> None:
    with pytest.raises(ConfigurationError, match=says):
        options_from(conf, given)


def test_the_defaults_are_legal() -> None:
    assert Options().checked() == Options()
