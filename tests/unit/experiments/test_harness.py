"""The skeleton of all experiments: options from settings, the run, its end by Ctrl-C, and its continuation."""

from __future__ import annotations

import argparse
import contextlib
import json
import signal
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from experiments.command import EXPERIMENTS
from experiments.harness import experiment as skeleton
from experiments.harness.arguments import choices, option, positive_numbers, settings_from, whole_numbers
from experiments.harness.console import plain_table
from experiments.harness.experiment import EXIT_FAILED, EXIT_OK, HERE, LOCAL, NAMESPACES, Experiment
from experiments.harness.running import Context, error_of
from flinkplus.cli.main import parser
from flinkplus.errors import ConfigurationError


@dataclass(frozen=True)
class Settings:
    """Runs that count to a number."""

    numbers: tuple[int, ...] = option((3,), whole_numbers(1), metavar="N,...", help="one run for each")
    slow: bool = option(True, flag="--quick", action="store_false")
    seed: int = 1
    hosts: int | None = None

    def check(self) -> None:
        if 13 in self.numbers:
            raise ConfigurationError("13 is not allowed")


class Spark:
    """Stands for a session."""

    cancelled = 0

    @property
    def sparkContext(self) -> Spark:
        return self

    def cancelJobsWithTag(self, tag: str) -> None:
        self.cancelled += 1


def runs(context: Context[Settings]) -> Generator[dict[str, Any] | None, None, None]:
    yield None
    for number in context.settings.numbers[len(context.content["runs"]) :]:
        context.begin(f"counting to {number}")
        if number == 99:
            signal.raise_signal(signal.SIGINT)
            context.stop.wait()
        yield {"number": number, "error": "interrupted" if context.stop.is_set() else None}


def drawn(content: dict[str, Any], target: Path) -> bool:
    target.write_text("drawn")
    return len(content["runs"]) > 1


COUNTING = Experiment(
    "counting",
    Settings,
    slots=lambda settings: 2,
    total=lambda settings: 1 + len(settings.numbers),
    runs=runs,
    derive=lambda runs, settings: {"sum": sum(run["number"] for run in runs)},
    tables=lambda content: [
        plain_table("Numbers", ("number",), (), [(str(run["number"]),) for run in content["runs"]])
    ],
    pictures=(("counting.png", drawn),),
    conclude=lambda content: content.update(over=True),
    passed=lambda settings, content: content["sum"] > 4,
    clusters=(LOCAL, NAMESPACES, HERE),
    can_go_on=True,
)


@pytest.fixture
def spark(monkeypatch: pytest.MonkeyPatch) -> Spark:
    made = Spark()

    @contextlib.contextmanager
    def session(*arguments: object) -> Iterator[Spark]:
        assert arguments == (None, 2, None)
        yield made

    monkeypatch.setattr(skeleton, "one_session", session)
    return made


def command(out: Path, *arguments: str) -> int:
    top = argparse.ArgumentParser()
    COUNTING.add_to(top)
    given = top.parse_args(["--out", str(out), *arguments])
    code: int = given.run(given)
    return code


def written(out: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((out / "counting.json").read_text())
    return content


def test_a_run_from_its_options_to_its_files(spark: Spark, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command(tmp_path, "--numbers", "3") == EXIT_FAILED
    assert command(tmp_path, "--numbers", "3,4", "--quick") == EXIT_OK
    content = written(tmp_path)
    assert content["parameters"] == {"numbers": [3, 4], "slow": False, "seed": 1, "hosts": None}
    assert [run["number"] for run in content["runs"]] == [3, 4]
    assert (content["sum"], content["over"], content["interrupted"]) == (7, True, False)
    assert {"python", "pyspark", "flinkplus"} <= set(content["versions"]) and content["machine"]["cores"] >= 1
    assert all(run["load_1min"] >= 0 for run in content["runs"])
    said = capsys.readouterr().out.split("Numbers")[-1].splitlines()
    assert said[-3].startswith("conditions: ")
    assert [line.partition(":")[0] for line in said[-2:]] == ["written", "written"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["counting.json", "counting.png"]


def test_a_run_has_the_load_at_its_beginning(spark: Spark, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loads = iter((0.5, 3.0, 4.0))  # before the first step, and as each run begins
    monkeypatch.setattr(skeleton, "load_1min", lambda: next(loads))
    command(tmp_path, "--numbers", "3,4")
    assert [run["load_1min"] for run in written(tmp_path)["runs"]] == [3.0, 4.0]


def test_ctrl_c_writes_and_shows_what_there_is(
    spark: Spark, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # PySpark's may be left of an ended session
    try:
        with pytest.raises(KeyboardInterrupt):
            command(tmp_path, "--numbers", "3,99,5")
    finally:
        signal.signal(signal.SIGINT, before)
    content = written(tmp_path)
    assert content["interrupted"] is True and content["over"] is True and spark.cancelled == 1
    assert [run["number"] for run in content["runs"]] == [3]
    assert "Numbers" in capsys.readouterr().out


def test_an_experiment_goes_on(spark: Spark, tmp_path: Path) -> None:
    command(tmp_path, "--numbers", "3,4")
    (tmp_path / "counting.json").write_text(json.dumps(written(tmp_path) | {"started": "before"}))
    assert command(tmp_path, "--numbers", "3,4", "--go-on") == EXIT_OK
    assert written(tmp_path)["started"] == "before" and len(written(tmp_path)["runs"]) == 2
    with pytest.raises(ConfigurationError, match="parameters differ"):
        command(tmp_path, "--numbers", "3,5", "--go-on")
    for content, reason in (("[]", "it holds no experiment"), ("{", "cannot continue")):
        (tmp_path / "counting.json").write_text(content)
        with pytest.raises(ConfigurationError, match=reason):
            command(tmp_path, "--numbers", "3,4", "--go-on")
    assert command(tmp_path / "new", "--numbers", "3,4", "--go-on") == EXIT_OK, "there is nothing to take over"


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--numbers", "13"], "13 is not allowed"),
        (["--json", "/proc/no.json"], "cannot write --json /proc"),
        (["--hosts", "3"], "--hosts is for --cluster"),
        (["--cluster", "here", "--master", "local"], "a master of its own"),
        (["--cluster", "here"], "FLINKPLUS_MASTER is not set"),
    ],
)
def test_what_is_wrong_is_reported_before_spark_starts(tmp_path: Path, arguments: list[str], reason: str) -> None:
    with pytest.raises(ConfigurationError, match=reason):
        command(tmp_path, *arguments)
    assert list(tmp_path.iterdir()) == []


TEXT_EXPERIMENTS = ("recovery", "rescale", "usage", "cost", "overhead", "baselines", "scaling", "soak")


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_a_file_that_has_no_words_is_reported_before_anything_runs(name: str, tmp_path: Path) -> None:
    blank = tmp_path / "blank"
    blank.write_text("\n \t\n")
    arguments = ["experiment", name, "--out", str(tmp_path / "out"), "--input"]
    if name not in TEXT_EXPERIMENTS:
        with pytest.raises(SystemExit):
            parser().parse_args([*arguments, str(blank)])
        return
    for text, reason in ((blank, "has no words"), (tmp_path / "none", "No such file"), (tmp_path, "Is a directory")):
        given = parser().parse_args([*arguments, str(text)])
        with pytest.raises(ConfigurationError, match=f"--input .*{reason}"):
            given.run(given)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", [name for name in EXPERIMENTS if name != "snapshots"])
def test_every_experiment_with_jobs_has_a_transport(name: str) -> None:
    given = parser().parse_args(["experiment", name, "--transport", "grpc"])
    settings = settings_from(given, given.run.__self__.settings)
    assert settings.transport == "grpc" and settings.job_options() == {"transport": "grpc"}


def test_the_transport_is_that_of_every_job() -> None:
    from experiments import cost, overhead
    from experiments.baselines.experiment import BaselinesSettings
    from experiments.exactness.experiment import Settings as Exactness
    from experiments.recovery.experiment import Settings as Recovery
    from experiments.scaling.experiment import ScalingSettings
    from experiments.soak.experiment import Settings as Soak

    recovery, costs = Recovery(transport="grpc"), cost.CostSettings(transport="grpc")
    jobs = [recovery.options(case) for case in recovery.cases()[:3]]
    jobs += [costs.options(variant) for variant in costs.variants]
    jobs += [overhead.OverheadSettings(transport="grpc").options(overhead.Variant())]
    jobs += [ScalingSettings(transport="grpc").options(2, None)]
    jobs += [Soak(transport="grpc").options(), Exactness(transport="grpc").options()]
    baselines = BaselinesSettings(transport="grpc", engines=("flinkplus",)).cases()
    jobs += [dict(case.options) for case in baselines[:3]]
    assert all(job["transport"] == "grpc" for job in jobs)


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_the_defaults_of_every_experiment_can_be_run(name: str, tmp_path: Path) -> None:
    given = parser().parse_args(["experiment", name])
    one = given.run.__self__
    assert one.name == name and (given.out, given.json) == (f"results/{one.folder or name}", None)
    assert getattr(given, "master", None) is None and hasattr(given, "master") is one.in_session
    one.check(one.settings(), tmp_path / "found.json", tmp_path)
    assert one.total(one.settings()) > 0 and one.slots(one.settings()) > 0
    assert one.document(one.settings(), tmp_path / "found.json").content["runs"] == []


def test_lists_on_the_command_line() -> None:
    assert whole_numbers(1)("8,1,2") == (8, 1, 2)
    assert choices(("a", "b"))("b, a") == ("b", "a")
    assert positive_numbers("0.5,1") == (0.5, 1.0)
    for parse, text in (
        (whole_numbers(1), "0"),
        (whole_numbers(0), "1,1"),
        (whole_numbers(1), "x"),
        (choices(("a",)), "b"),
        (positive_numbers, "0"),
        (positive_numbers, "nan"),
    ):
        with pytest.raises(argparse.ArgumentTypeError, match="is not a list of"):
            parse(text)


def test_an_error_of_a_run_in_words() -> None:
    def run() -> None:
        raise TimeoutError("for this test")

    assert error_of(run) == "TimeoutError: for this test"
    assert error_of(lambda: None) is None
