"""Entry point of the ``flinkplus`` command.

Exit codes: 0 the job finished (and, where it was compared, its result is right); 1 it failed or its result is
wrong; 2 bad usage or configuration; 130 interrupted. Errors are one line on stderr, without a traceback.
"""

from __future__ import annotations

import argparse
import importlib
import os
import signal
import sys
import warnings
from collections.abc import Sequence
from typing import Any

from flinkplus import __version__, errors
from flinkplus.cli.arguments import add_option, given_options, positive, positive_number
from flinkplus.cli.checkpoints import add_checkpoints, add_savepoint
from flinkplus.cli.example import add_example
from flinkplus.cli.figures import check_json, write_json
from flinkplus.cli.inject import add_inject
from flinkplus.cli.jobs.page import add_ui, add_ui_options
from flinkplus.cli.jobs.running import add_jobs
from flinkplus.cli.moves import add_moves
from flinkplus.cli.state_rows.command import add_state
from flinkplus.cli.status import add_status
from flinkplus.cli.supervise.command import add_supervise
from flinkplus.cli.upgrade.check import add_check_upgrade
from flinkplus.printable import escaped

EXPERIMENTS, DEMO = "experiments.command", "experiments.demo"
"""Found by name: experiments stand above the command line, which cannot import them."""
EXIT_OK, EXIT_FAILED, EXIT_USAGE, EXIT_INTERRUPTED = 0, 1, 2, 130
USAGE_ERRORS = (
    errors.ConfigurationError,
    errors.InputError,
    errors.OutputDirectoryError,
    errors.OutputTableError,
    errors.OutputTopicError,
    errors.CheckpointDirectoryError,
    errors.InsufficientSlots,
    errors.JavaError,
    errors.UntrustedCheckpoint,
)


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(prog="flinkplus", description="Fast failover for stateful streaming on Spark.")
    top.add_argument("--version", action="version", version=f"flinkplus {__version__}")
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")
    _add_wordcount(commands)
    _add_demo(commands)
    _add_resume(commands)
    add_supervise(commands)
    add_checkpoints(commands)
    add_state(commands)
    add_check_upgrade(commands)
    add_savepoint(commands)
    _add_corpus(commands)
    add_example(commands)
    add_jobs(commands)
    add_status(commands)
    add_ui(commands)
    add_inject(commands)
    add_moves(commands)
    importlib.import_module(EXPERIMENTS).add_commands(commands)
    return top


def _add_wordcount(commands: Any) -> None:
    from flinkplus.cli.wordcount import parse_kill

    command = commands.add_parser("wordcount", help="running count of every word, with kills on request")
    command.add_argument("input", nargs="?", metavar="INPUT", help="file, directory or glob (default: the demo text)")
    command.add_argument("--output", metavar="DIR", help="Parquet directory; without it results are only counted")
    add_option(command, "parallelism")
    command.add_argument("--rate", type=positive_number, metavar="WORDS_PER_S", help="steady rate (default: unlimited)")
    command.add_argument("--repeat", type=positive, default=1, metavar="N", help="read the input N times (default: 1)")
    add_option(command, "checkpoint_interval")
    command.add_argument("--no-checkpoints", action="store_true", help="only the checkpoint that ends the job")
    for name in ("checkpoint_mode", "aligned_timeout", "checkpoint_dir"):
        add_option(command, name)
    command.add_argument(
        "--resume",
        choices=["auto"],
        help="start the job, or resume it from --checkpoint-dir; do nothing if it has finished (for a supervisor)",
    )
    _add_signing(command)
    for name in ("recovery", "replicas", "placement", "failback", "zookeeper", "zookeeper_acl", "max_restarts"):
        add_option(command, name)
    add_option(command, "transport")
    command.add_argument("--tls", action="store_true", help="mutual TLS, with certificates made for the job")
    command.add_argument(
        "--tls-certificates", metavar="DIR", help="mutual TLS, with the certificates in DIR on every host"
    )
    command.add_argument("--kill", type=parse_kill, action="append", default=[], metavar="SUBTASK@SECONDS")
    command.add_argument("--duration", type=positive_number, metavar="S", help="end the input after S seconds")
    add_option(command, "encoding_errors")
    add_ui_options(command)
    command.add_argument("--no-check", action="store_true", help="do not compare the output with a batch count")
    command.add_argument("--json", metavar="FILE", help="write every figure here")
    command.add_argument("--master", metavar="URL", help="Spark master (default: local, with a thread for each slot)")
    command.set_defaults(run=_wordcount)


def _add_signing(command: argparse.ArgumentParser) -> None:
    add_option(command, "signing_key")
    command.add_argument(
        "--trust", action="store_true", help="resume a job that another key has signed: runs the code of its author"
    )


def _add_demo(commands: Any) -> None:
    command = commands.add_parser("demo", help="kill one slot of a WordCount, with standbys and with rollback")
    command.add_argument("--json", metavar="FILE", help="write every figure here")
    add_ui_options(command)
    command.add_argument("--stay", action="store_true", help="keep the pages of the jobs open at the end, until Ctrl-C")
    command.set_defaults(run=_demo)


def _add_resume(commands: Any) -> None:
    command = commands.add_parser("resume", help="continue a job from the last complete checkpoint in its directory")
    command.add_argument("directory", metavar="CHECKPOINT_DIR", help="of the job; or a savepoint")
    command.add_argument("--checkpoint-dir", metavar="DIR", help="new, for the job that starts from a savepoint")
    command.add_argument("--job", metavar="NAME", help="refuse a directory of a job with another name")
    command.add_argument(
        "--parallelism", type=positive, metavar="N", help="run it with N subtasks of each operator (default: as before)"
    )
    _add_signing(command)
    add_ui_options(command)
    command.add_argument("--master", metavar="URL", help="Spark master (default: local, with a thread for each slot)")
    command.add_argument("--json", metavar="FILE", help="write the job's figures here")
    command.set_defaults(run=_resume)


def _add_corpus(commands: Any) -> None:
    command = commands.add_parser("corpus", help="write a Zipf-distributed text of any size")
    command.add_argument("--words", type=positive, required=True, metavar="N")
    command.add_argument("--vocabulary", type=positive, required=True, metavar="V")
    command.add_argument("--seed", type=int, default=1, metavar="S")
    command.add_argument("--output", required=True, metavar="FILE")
    command.set_defaults(run=_corpus)


def _wordcount(arguments: argparse.Namespace) -> int:
    from flinkplus.cli import session, wordcount

    options = given_options(arguments)
    if arguments.no_checkpoints:
        options["checkpoint_interval"] = None
    if arguments.tls_certificates is not None:
        options["tls"] = arguments.tls_certificates
    run = wordcount.WordCount(
        input=arguments.input,
        output=arguments.output,
        rate=arguments.rate,
        repeat=arguments.repeat,
        kills=tuple(arguments.kill),
        duration_s=arguments.duration,
        check=not arguments.no_check,
        resume=arguments.resume or False,
        trust=arguments.trust,
        options=options,
    )
    wordcount.check_usage(run)
    check_json(arguments.json)
    with session.session(session.check_master(arguments.master, arguments.parallelism)) as spark:
        result = wordcount.run_wordcount(spark, run)
    wordcount.print_summary(result)
    write_json(arguments.json, result)
    return EXIT_FAILED if result["matches_batch"] is False else EXIT_OK


def _demo(arguments: argparse.Namespace) -> int:
    check_json(arguments.json)
    code: int = importlib.import_module(DEMO).run_demo(arguments.json, arguments.ui, arguments.stay)
    return code


def _resume(arguments: argparse.Namespace) -> int:
    from flinkplus.cli import resume

    check_json(arguments.json)
    figures = resume.run_resume(arguments)
    write_json(arguments.json, figures)
    return EXIT_OK


def _corpus(arguments: argparse.Namespace) -> int:
    from flinkplus.corpus import write_corpus

    write_corpus(arguments.output, arguments.words, arguments.vocabulary, arguments.seed)
    print(f"{arguments.words:,} words of a vocabulary of {arguments.vocabulary:,} written to {arguments.output}")
    return EXIT_OK


_interruptions: list[int] = []
"""The signal that has interrupted the command, if one has."""


def _interrupted(number: int, _frame: object) -> None:
    """Ctrl-C or SIGTERM: end the job. Another signal must not interrupt the end, or things are left behind."""
    _interruptions.append(number)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _ending)
    raise KeyboardInterrupt


def _ending(_signal: int, _frame: object) -> None:
    os.write(sys.stderr.fileno(), b"ending the job, one moment\n")  # print may be what was interrupted


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit code."""
    warnings.simplefilter("default", RuntimeWarning)
    _interruptions.clear()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _interrupted)
    try:
        parsed = parser().parse_args(arguments)
        code: int = parsed.run(parsed)
    except (KeyboardInterrupt, errors.FlinkPlusError) as error:
        if _interruptions or isinstance(error, KeyboardInterrupt):  # a signal breaks other things as well
            print("interrupted; the job was ended", file=sys.stderr)
            return EXIT_INTERRUPTED
        cause = (
            f" ({error.__cause__})" if error.__cause__ is not None and str(error.__cause__) not in str(error) else ""
        )
        print(escaped(f"flinkplus: {error}{cause}", keep="\n\t"), file=sys.stderr)
        code = EXIT_USAGE if isinstance(error, USAGE_ERRORS) else EXIT_FAILED
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = EXIT_FAILED
    return code


if __name__ == "__main__":
    sys.exit(main())
