"""Text to count words in: the English prose that every CPython carries, and made-up text of any size.

Rules: for made-up text, equal arguments give an equal file on every machine. Its words follow Zipf's law over a finite
vocabulary: the word of rank *r* has a probability proportional to 1/r; or all are equally likely. They are distinct,
can be pronounced, and the more frequent ones are the shorter ones. A file appears under its name when it is complete.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from flinkplus.errors import ConfigurationError, InputError

_CONSONANTS = "tnshrdlcmfwgpbvkjxzq"
_VOWELS = "aeiou"
_SYLLABLES = [consonant + vowel for vowel in _VOWELS for consonant in _CONSONANTS]
_CHUNK_WORDS = 1 << 19


def demo_lines() -> list[str]:
    """The documentation of Python's language topics (``pydoc_data.topics``), some 65,000 words."""
    from pydoc_data.topics import topics

    return [line for name in sorted(topics) for line in topics[name].splitlines()]


def demo_file() -> Path:
    """The demo text as a file in the user's cache directory (``XDG_CACHE_HOME``), written when it is not there yet. It
    stays there: a job that is resumed reads it again. Raises ``InputError`` when it cannot be written."""
    lines = demo_lines()
    digest = hashlib.blake2b("\n".join(lines).encode(), digest_size=6).hexdigest()
    cache = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "flinkplus"
    path = cache / f"demo-{digest}.txt"
    if not path.exists():
        try:
            cache.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(f"the demo text cannot be kept in {str(cache)!r}: {error}; set XDG_CACHE_HOME") from error
        _write_atomically(path, (line.encode() + b"\n" for line in lines))
    return path


def write_corpus(
    path: str | os.PathLike[str],
    words: int,
    vocabulary: int,
    seed: int,
    words_per_line: int = 10,
    uniform: bool = False,
) -> None:
    """Write ``words`` words, drawn from ``vocabulary`` different ones, ``words_per_line`` to a line. ``uniform``: all
    equally likely. Raises ``ConfigurationError`` for numbers that make no sense, ``InputError`` when the file cannot be
    written."""
    if words < 0 or vocabulary < 1 or words_per_line < 1:
        raise ConfigurationError(
            "a corpus needs 0 or more words, a vocabulary of at least 1 and at least 1 word per line, "
            f"not {words}, {vocabulary} and {words_per_line}"
        )

    weights = np.ones(vocabulary) if uniform else 1.0 / np.arange(1, vocabulary + 1)
    _write_atomically(path, _lines(words, np.cumsum(weights), seed, words_per_line))


def word_of_rank(rank: int) -> str:
    """The made-up word of a rank, from 0: its number in syllables, every one of them in use."""
    syllables = []
    rank += 1
    while rank > 0:
        rank, digit = divmod(rank - 1, len(_SYLLABLES))
        syllables.append(_SYLLABLES[digit])
    return "".join(reversed(syllables))


def _lines(words: int, weights: npt.NDArray[np.float64], seed: int, words_per_line: int) -> Iterator[bytes]:
    """``weights``: cumulated, of the word of each rank."""
    vocabulary = len(weights)
    spelling = pa.array([word_of_rank(rank) for rank in range(vocabulary)])
    generator = np.random.Generator(np.random.PCG64(seed))
    chunk_words = max(1, _CHUNK_WORDS // words_per_line) * words_per_line
    for start in range(0, words, chunk_words):
        count = min(chunk_words, words - start)
        ranks = np.searchsorted(weights, generator.random(count) * weights[-1], side="right")
        yield _text(spelling.take(pa.array(np.minimum(ranks, vocabulary - 1))), words_per_line)


def _text(words: pa.StringArray, words_per_line: int) -> bytes:
    bounds: npt.NDArray[np.int32] = np.append(np.arange(0, len(words), words_per_line), len(words)).astype(np.int32)
    lines = pc.binary_join(pa.ListArray.from_arrays(pa.array(bounds), words), " ")
    whole = pa.ListArray.from_arrays(pa.array([0, len(lines)], pa.int32()), lines)
    return bytes(pc.binary_join(whole, "\n")[0].as_buffer()) + b"\n"


def _write_atomically(path: str | os.PathLike[str], parts: Iterable[bytes]) -> None:
    """Write ``parts`` to a file that then appears at ``path``. Raises ``InputError``."""
    target = Path(path)
    partial = target.with_name(f".{target.name}.{os.getpid()}.partial")
    try:
        try:
            with open(partial, "wb") as out:
                out.writelines(parts)
                out.flush()
                os.fsync(out.fileno())
            os.replace(partial, target)
        finally:
            partial.unlink(missing_ok=True)
    except OSError as error:
        raise InputError(f"cannot write the corpus {str(target)!r}: {error.strerror}") from error
