"""Work in a thread of its own, so that Ctrl-C meets a thread that only waits.

An interrupt in the middle of a call into the JVM tears py4j's connection. So calls of Spark run beside the main thread,
which on Ctrl-C asks the work to stop and waits until everything is given back.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any, TypeVar

T = TypeVar("T")
WAIT_S = 0.1


def beside(work: Generator[T, Any, Any], stop: Callable[[], None]) -> Iterator[T]:
    """The items of ``work``, which runs in another thread and is closed there in the end.

    ``stop`` is called on ``KeyboardInterrupt``, or anything else that a handler of signals raises. It must make
    ``work`` end soon. The interrupt is raised when it has.
    """
    over, failure = object(), None
    with ThreadPoolExecutor(1, thread_name_prefix="experiment") as pool:
        try:
            # An interrupt while the pool starts its thread would have it start a second one, beside this one's work.
            pool.submit(lambda: None).result()
            while True:
                answer = pool.submit(next, work, over)
                while not wait([answer], WAIT_S).done:
                    pass
                failure = answer.exception()
                item = answer.result()
                if item is over:
                    return
                yield item  # type: ignore[misc]
        except GeneratorExit:
            raise
        except BaseException as error:
            if error is not failure:  # it came while this thread waited, at any of the lines above
                stop()
            raise
        finally:
            pool.submit(work.close).result()
