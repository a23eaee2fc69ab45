"""Work in a thread of its own, so that Ctrl-C meets a thread that only waits.

An interrupt in the middle of a call into the JVM tears py4j's connection. So what talks to Spark runs beside the main
thread, which on Ctrl-C asks it to stop and waits until everything is given back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from typing import TypeVar

T = TypeVar("T")
WAIT_S = 0.1


def beside(work: Iterator[T], stop: Callable[[], None]) -> Iterator[T]:
    """What ``work`` gives, taken from it in another thread. ``stop`` is called on ``KeyboardInterrupt`` and must make
    ``work`` end soon, one way or the other; the interrupt goes on when it has.
    """
    over = object()
    with ThreadPoolExecutor(1, thread_name_prefix="experiment") as pool:
        while True:
            answer = pool.submit(next, work, over)
            try:
                while not wait([answer], WAIT_S).done:
                    pass
            except KeyboardInterrupt:
                stop()
                raise
            item = answer.result()
            if item is over:
                return
            yield item  # type: ignore[misc]
