"""The compose file, as the namespaces read it."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
import yaml

from experiments.cluster.compose import find_compose, read_compose
from experiments.cluster.place import Place
from experiments.recovery.experiment import EXPERIMENT, Settings
from flinkplus.errors import ConfigurationError

SMALL = """\
x-host: &host
  image: some
  volumes: [shared:/mnt/shared]
services:
  first:
    <<: *host
    hostname: one
    command: run "two words" ${NAME} ${OTHER:-default} $$HOME
    environment: [A=1, "B=${NAME}"]
  second:
    command: [run, "${OTHER:-}"]
volumes:
  shared:
"""


def written(directory: Path, text: str) -> Path:
    path = directory / "docker-compose.yml"
    path.write_text(text)
    return path


def test_services_are_read(tmp_path: Path) -> None:
    services = read_compose(written(tmp_path, SMALL), {"NAME": "x"})
    assert list(services) == ["first", "second"]
    first, second = services.values()
    assert first.hostname == "one" and second.hostname == "second"
    assert first.command == ("run", "two words", "x", "default", "$HOME")
    assert first.environment == {"A": "1", "B": "x"}
    assert first.volumes == (("shared", "/mnt/shared"),)
    assert second.command == ("run", "") and not second.environment and not second.volumes


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("hostname: one", "privileged: true", "service first: 'privileged'"),
        ("services:", "networks: {a: {}}\nservices:", "'networks'"),
        ("shared:/mnt/shared", "/etc:/mnt/shared", "the volume '/etc:/mnt/shared'"),
        ("shared:/mnt/shared", "shared:/var/shared", "below /mnt"),
        ('command: [run, "${OTHER:-}"]', "image: other", "service second has no command"),
        ("services:", "service:", "no services"),
        ("services:", "services: [", "cannot be read"),
    ],
)
def test_what_namespaces_cannot_do_is_refused(tmp_path: Path, old: str, new: str, reason: str) -> None:
    with pytest.raises(ConfigurationError, match=reason.replace("[", r"\[")):
        read_compose(written(tmp_path, SMALL.replace(old, new)), {})


def test_the_services_of_this_repository() -> None:
    path = find_compose()
    services = read_compose(path, {})
    assert len({service.hostname for service in services.values()}) == len(services) == 9
    for service in services.values():
        script = path.parent / service.command[0]
        assert os.access(script, os.X_OK), f"{service.name} runs {script}"
    ensemble = [name for name in services if name.startswith("zk-")]
    for number, name in enumerate(ensemble, 1):
        assert services[name].command[1:] == (str(number), *ensemble)
    environment = services["job"].environment
    place = Place.here(environment)
    assert place.master == f"spark://{services['master'].hostname}:7077"
    assert place.zookeeper == ",".join(f"{name}:2181" for name in ensemble)
    for service in services.values():
        assert str(place.shared) in [target for _, target in service.volumes], "all hosts share it"
    assert Path(environment["XDG_CACHE_HOME"]).is_relative_to(place.shared), "workers read the demo text there"


def test_one_image_for_all_services_is_built_once() -> None:
    services = yaml.safe_load(find_compose().read_text())["services"]
    assert [name for name, content in services.items() if "build" in content] == ["job"]
    for content in services.values():
        if "profiles" in content:
            continue  # started on request, by another check
        assert content["image"] == "flinkplus" and content["pull_policy"] == "never", "no registry has it"


def test_the_image_has_every_package() -> None:
    root = find_compose().parent
    copied = re.findall(r"^COPY (\w+) \1$", (root / "Dockerfile").read_text(), re.MULTILINE)
    packages = {path.parent.name for path in root.glob("*/__init__.py")} - {"tests"}
    assert packages | {"scripts"} == set(copied)


def test_the_image_is_pinned_and_runs_nothing_as_root() -> None:
    lines = (find_compose().parent / "Dockerfile").read_text().splitlines()
    assert [line for line in lines if line.startswith("FROM ")] == ["FROM ${BASE}"]
    (base,) = [line for line in lines if line.startswith("ARG BASE=")]
    assert re.fullmatch(r"ARG BASE=python:[0-9.]+-slim-bookworm@sha256:[0-9a-f]{64}", base)
    assert lines[-1] == "USER flinkplus"


def test_elsewhere_there_is_no_place() -> None:
    with pytest.raises(ConfigurationError, match="FLINKPLUS_ZOOKEEPER is not set"):
        Place.here({"FLINKPLUS_MASTER": "spark://master:7077"})


def test_failures_of_hosts_that_nobody_can_order_are_refused_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in read_compose(find_compose(), {})["job"].environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("FLINKPLUS_SHARED", str(tmp_path))
    settings = Settings(parallelism=(4,), failure=("sigkill", "hang"), hosts=4)
    with pytest.raises(ConfigurationError, match="the failure hang is ordered"):
        EXPERIMENT.run(settings, tmp_path / "recovery.json", tmp_path)
