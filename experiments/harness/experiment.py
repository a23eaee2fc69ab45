"""The skeleton of an experiment: options, checks, session, runs, document, tables, pictures, exit code.

Rules: everything that can be seen to be wrong is reported before Spark is started. On Ctrl-C the job and Spark end, and
what was found until then is written and shown.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeAlias

from pyspark.sql import SparkSession

from experiments.cluster.place import Place
from experiments.harness import console
from experiments.harness.arguments import add_options, settings_from
from experiments.harness.beside import beside
from experiments.harness.conditions import conditions_line, load_1min
from experiments.harness.document import Document
from experiments.harness.running import Context, S, input_of, one_session
from experiments.harness.text import check_text
from flinkplus.cli.arguments import positive
from flinkplus.cli.figures import check_json
from flinkplus.errors import ConfigurationError

EXIT_OK, EXIT_FAILED = 0, 1
LOCAL, NAMESPACES, HERE = "local", "namespaces", "here"
DEFAULT_HOSTS = 4
GO_ON = "keep the runs that the file of --json has, do the rest"


Content: TypeAlias = dict[str, Any]
"""Of the document."""


@dataclass(frozen=True)
class Experiment(Generic[S]):
    """One experiment.

    ``settings``: a dataclass of options. ``slots``: of the largest job.
    ``runs``: the figures of one run after the other, ``None`` for a step that is no run; ``total``: how many of both.
    ``derive``: parts of the document that are recomputed from all runs; ``more``: further ones, at the beginning;
    ``conclude``: adds what is known at the end.
    ``tables``: tables and lines for people. ``pictures``: files, and what draws them and returns whether it could.
    ``found_any``: whether there is anything to show. ``passed``: whether the exit code is 0.
    ``clusters``: values of ``--cluster``, if it runs on one (then the settings have ``hosts``); ``ordered``: what it
    orders the cluster to do, if anything.
    ``in_session``: whether its runs share a session; else they start what they need themselves.
    ``can_go_on``: whether it has ``--go-on``. ``folder``: of its files below ``results``; ``files``: what they are.
    """

    name: str
    settings: type[S]
    slots: Callable[[S], int]
    total: Callable[[S], int]
    runs: Callable[[Context[S]], Generator[dict[str, Any] | None, None, None]]
    derive: Callable[[list[dict[str, Any]], S], Content]
    tables: Callable[[Content], Sequence[object]]
    pictures: tuple[tuple[str, Callable[[Content, Path], bool]], ...] = ()
    more: Callable[[S], Content] = lambda settings: {}
    conclude: Callable[[Content], None] = lambda content: None
    found_any: Callable[[Content], bool] = lambda content: bool(content["runs"])
    passed: Callable[[S, Content], bool] = lambda settings, content: True
    clusters: tuple[str, ...] = ()
    ordered: Callable[[S], str | None] = lambda settings: None
    in_session: bool = True
    can_go_on: bool = False
    folder: str = ""
    files: str = "for files"

    # --- the command line

    def add_to(self, command: argparse.ArgumentParser) -> None:
        """The options, and what runs the command."""
        add_options(command, self.settings)
        if self.clusters:
            local = LOCAL in self.clusters
            command.add_argument(
                "--cluster",
                choices=self.clusters,
                default=LOCAL if local else None,
                help=f"{'local: without one; ' if local else ''}namespaces: start one on this machine, which takes "
                "root; here: this is the job's host of one",
            )
            command.add_argument("--hosts", type=positive, metavar="N", help="workers of the cluster (default: 4)")
        if self.can_go_on:
            command.add_argument("--go-on", action="store_true", help=GO_ON)
        out = f"results/{self.folder or self.name}"
        command.add_argument(
            "--json", metavar="FILE", help=f"raw data (default: {self.name}.json in the directory of --out)"
        )
        command.add_argument("--out", default=out, metavar="DIR", help=f"{self.files} (default: {out})")
        if self.in_session:
            command.add_argument("--master", metavar="URL", help="Spark master (default: local)")
        command.set_defaults(run=self.command)

    def command(self, arguments: argparse.Namespace) -> int:
        """Returns the exit code."""
        cluster = getattr(arguments, "cluster", None)
        if cluster in (NAMESPACES, HERE):
            if getattr(arguments, "master", None) is not None:
                raise ConfigurationError("--cluster has a master of its own")
            arguments.hosts = arguments.hosts or DEFAULT_HOSTS
        elif getattr(arguments, "hosts", None) is not None:
            raise ConfigurationError("--hosts is for --cluster")
        settings = settings_from(arguments, self.settings)
        out = Path(arguments.out)
        path = Path(arguments.json or out / f"{self.name}.json")
        if cluster == NAMESPACES:
            from experiments.cluster.inside import run_inside

            self.check(settings, path, out)
            return run_inside(arguments.hosts)
        content = self.run(settings, path, out, getattr(arguments, "master", None), getattr(arguments, "go_on", False))
        return EXIT_OK if self.passed(settings, content) else EXIT_FAILED

    # --- the run

    def document(self, settings: S, path: Path, go_on: bool = False) -> Document:
        """A new one; ``go_on``: with the runs that ``path`` has."""
        document = Document(self.name, settings, path, lambda runs: self.derive(runs, settings))
        document.content |= self.more(settings)
        if go_on:
            document.take_over()
        return document

    def check(self, settings: S, path: Path, out: Path) -> None:
        """Raises ``ConfigurationError`` for what no run would accept, and for files that cannot be written."""
        settings.check()
        text = input_of(settings)
        if text is not None:
            check_text(text)
        for target in (path, *(out / name for name, _ in self.pictures)):
            check_json(target)

    def place(self, settings: S) -> Place | None:
        """The cluster, if the settings have hosts. Raises ``ConfigurationError``."""
        if getattr(settings, "hosts", None) is None:
            return None
        place, ordered = Place.here(), self.ordered(settings)
        if ordered is not None and place.control is None:
            raise ConfigurationError(f"{ordered} is ordered, and this cluster takes no orders")
        return place

    def run(self, settings: S, path: Path, out: Path, master: str | None = None, go_on: bool = False) -> Content:
        """Check the settings, run everything, print tables, write JSON and pictures; returns the document.

        Raises ``ConfigurationError`` and the like before anything runs.
        """
        self.check(settings, path, out)
        place = self.place(settings)
        document = self.document(settings, path, go_on)
        content = document.content
        try:
            with (
                self._session(settings, master, place) as session,
                tempfile.TemporaryDirectory(
                    prefix=f"flinkplus-{self.name}-", dir=None if place is None else place.shared
                ) as directory,
                console.bar(self.total(settings) - len(content["runs"]), "starting") as bar,
            ):
                load = load_1min()

                def begin(what: str) -> None:
                    nonlocal load
                    load = load_1min()
                    bar.begin(what)

                context = Context(session, settings, Path(directory), content, out, place, begin, bar.say)
                for figures in beside(self.runs(context), context.end):
                    if figures is not None:
                        document.add({"load_1min": load, **figures})
                    bar.end()
        except KeyboardInterrupt:
            content["interrupted"] = True
            document.write()
            raise
        finally:
            if self.found_any(content):
                self.conclude(content)
                document.write()
                self.show(content, out)
                console.show(f"written: {path}")
        return content

    def _session(
        self, settings: S, master: str | None, place: Place | None
    ) -> AbstractContextManager[SparkSession | None]:
        if not self.in_session:
            return nullcontext()
        slots = self.slots(settings)
        if place is None:
            return one_session(master, slots, None)
        hosts: int = settings.hosts  # type: ignore[attr-defined]
        return one_session(place.master, slots, place.session_settings(hosts))

    def show(self, content: Content, out: Path) -> None:
        """Tables and the conditions of the runs to stdout, pictures to ``out``."""
        console.show(*self.tables(content))
        console.show_line(conditions_line(content))
        for name, draw in self.pictures:
            if draw(content, out / name):
                console.show(f"written: {out / name}")
