"""``python -m tests.fuzz``: mutated input for every decoder, for a time.

Rules: a case is named by target, seed and number, and is the same everywhere. Each target has a process of its own,
with a limit of memory, and writes the number of the case before it begins: what crashes or hangs is told and can be
repeated (``--target T --seed S --case N``). The exit status is 1 when there is a finding.
"""

from __future__ import annotations

import argparse
import faulthandler
import mmap
import multiprocessing
import os
import random
import resource
import struct
import sys
import time
import traceback
import warnings
from multiprocessing.connection import Connection

from tests.fuzz.messages import assert_readable
from tests.fuzz.targets import Target, targets

MEMORY_BYTES = 512 << 20
"""What a target may take beyond what it begins with."""
HANG_S = 20.0
MAX_FINDINGS = 5


class Finding(Exception):
    """A case with another outcome than a value or a documented error with a readable text."""


def run_case(target: Target, seed: int, number: int) -> None:
    """One case. Raises ``Finding``."""
    data = target.case(random.Random(f"{seed}/{target.name}/{number}"))
    run_data(target, data, f"{target.name} case {number} of seed {seed}")


def run_data(target: Target, data: bytes, what: str) -> None:
    """One case, called ``what``. Raises ``Finding``."""
    try:
        try:
            target.decode(data)
        except target.errors as error:
            assert_readable(error)
    except Exception as error:
        raise Finding(f"{what}: {error!r:.500} for {data!r:.200}") from error


def _limit_memory() -> None:
    if not sys.platform.startswith("linux"):
        return
    with open("/proc/self/statm", encoding="ascii") as found:
        now = int(found.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (now + MEMORY_BYTES, now + MEMORY_BYTES))


def _work(name: str, seed: int, seconds: float, at: mmap.mmap, answer: Connection) -> None:
    """All cases of one target, in a process of its own."""
    faulthandler.enable(2)
    target = next(target for target in targets() if target.name == name)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    _limit_memory()
    found: list[str] = []
    until, number = time.monotonic() + seconds, 0
    while time.monotonic() < until and len(found) < MAX_FINDINGS:
        at[:8] = struct.pack("<Q", number)
        try:
            run_case(target, seed, number)
        except Finding as finding:
            found.append("".join(traceback.format_exception(finding)))
        number += 1
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    answer.send((number, grown, found))


def fuzz(name: str, seed: int, seconds: float) -> list[str]:
    """Fuzz one target; what was found, as text."""
    at = mmap.mmap(-1, 8)
    mine, theirs = multiprocessing.Pipe(duplex=False)
    process = multiprocessing.get_context("fork").Process(target=_work, args=(name, seed, seconds, at, theirs))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # threads of the parent's are none of the child's business
        process.start()
    theirs.close()
    cases, grown, found = 0, 0, []
    known, since = -1, time.monotonic()
    while not mine.poll(0.2) and process.is_alive():
        (number,) = struct.unpack("<Q", at[:8])
        if number != known:
            known, since = number, time.monotonic()
        elif time.monotonic() - since > HANG_S:
            process.kill()
            found = [f"{name} case {number} of seed {seed} takes longer than {HANG_S} s"]
    if not found:
        try:
            cases, grown, found = mine.recv()
        except EOFError:
            process.join()
            (number,) = struct.unpack("<Q", at[:8])
            found = [f"{name} case {number} of seed {seed} ended its process (status {process.exitcode})"]
    process.join()
    print(f"{name:14} {cases:10,} cases, {len(found)} findings, {grown / 1024:.0f} MiB more at most", flush=True)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--seconds", type=float, default=600.0, help="in all, shared by the targets (600)")
    parser.add_argument("--seed", type=int, default=None, help="default: another one each time, which is printed")
    parser.add_argument("--target", help="only this one")
    parser.add_argument("--case", type=int, help="only this case of --target and --seed")
    arguments = parser.parse_args()
    names = [target.name for target in targets() if arguments.target in (None, target.name)]
    seed = arguments.seed if arguments.seed is not None else int.from_bytes(os.urandom(4), "little")
    if not names:
        parser.error(f"no target {arguments.target!r}")
    if arguments.case is not None:
        (target,) = (target for target in targets() if target.name == arguments.target)
        run_case(target, seed, arguments.case)
        return 0
    print(f"seed {seed}, {arguments.seconds:g} s, {len(names)} targets", flush=True)
    found = [text for name in names for text in fuzz(name, seed, arguments.seconds / len(names))]
    for text in found:
        print(text, file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
