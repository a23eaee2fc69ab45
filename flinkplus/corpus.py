"""Text to count words in: the English prose that every CPython carries, and made-up text of any size.

Rules:

- Made-up text: the same arguments give the same file, byte for byte, on every machine. (The demo text is the Python
  version's.)
- Made-up words follow Zipf's law over a finite vocabulary: the word of rank *r* has a probability proportional to
  1/r. They are distinct, can be pronounced, and the more frequent are the shorter ones, as in a language.
- A file appears under its name when it is whole.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from flinkplus.errors import ConfigurationError, InputError

_CONSONANTS = "tnshrdlcmfwgpbvkjxzq"
_VOWELS = "aeiou"
_SYLLABLES = [consonant + vowel for vowel in _VOWELS for consonant in _CONSONANTS]
_CHUNK_WORDS = 1 << 19


@dataclass(frozen=True, slots=True)
class CorpusInfo:
    """What has been written."""

    lines: int
    words: int
    bytes: int


def demo_lines() -> list[str]:
    """The documentation of Python's language topics (``pydoc_data.topics``), some 65,000 words, in lines without
    their ends.
    """
    from pydoc_data.topics import topics

    return [line for name in sorted(topics) for line in topics[name].splitlines()]


def write_demo(path: str | os.PathLike[str]) -> CorpusInfo:
    """Write ``demo_lines`` to ``path``. Raises ``InputError`` when it cannot be written."""
    lines = demo_lines()

    def write(out: BinaryIO) -> None:
        out.writelines(line.encode() + b"\n" for line in lines)

    size = _write_atomically(path, write)
    return CorpusInfo(len(lines), sum(len(line.split()) for line in lines), size)


def demo_file() -> Path:
    """The demo text as a file in the user's cache directory (``XDG_CACHE_HOME``), written when it is not there yet.

    It stays there: a job that is resumed reads it again. Raises ``InputError`` when it cannot be written.
    """
    text = "\n".join(demo_lines())
    cache = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "flinkplus"
    path = cache / f"demo-{hashlib.blake2b(text.encode(), digest_size=6).hexdigest()}.txt"
    if not path.exists():
        try:
            cache.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(f"the demo text cannot be kept in {str(cache)!r}: {error}; set XDG_CACHE_HOME") from error
        write_demo(path)
    return path


def write_corpus(
    path: str | os.PathLike[str], words: int, vocabulary: int, seed: int, words_per_line: int = 10
) -> CorpusInfo:
    """Write ``words`` words, drawn from ``vocabulary`` different ones, ``words_per_line`` to a line.

    Raises ``ConfigurationError`` for numbers that make no sense, ``InputError`` when the file cannot be written.
    """
    if words < 0 or vocabulary < 1 or words_per_line < 1:
        raise ConfigurationError(
            "a corpus needs 0 or more words, a vocabulary of at least 1 and at least 1 word per line, "
            f"not {words}, {vocabulary} and {words_per_line}"
        )

    def write(out: BinaryIO) -> None:
        for text in _lines(words, vocabulary, seed, words_per_line):
            out.write(text)

    size = _write_atomically(path, write)
    return CorpusInfo(-(-words // words_per_line), words, size)


def word_of_rank(rank: int) -> str:
    """The made-up word of a rank, from 0: its number in syllables, every one of them in use."""
    syllables = []
    rank += 1
    while rank > 0:
        rank, digit = divmod(rank - 1, len(_SYLLABLES))
        syllables.append(_SYLLABLES[digit])
    return "".join(reversed(syllables))


def _lines(words: int, vocabulary: int, seed: int, words_per_line: int) -> Iterator[bytes]:
    spelling = pa.array([word_of_rank(rank) for rank in range(vocabulary)])
    generator = np.random.Generator(np.random.PCG64(seed))
    weights = np.cumsum(1.0 / np.arange(1, vocabulary + 1))
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


def _write_atomically(path: str | os.PathLike[str], write: Callable[[BinaryIO], None]) -> int:
    """Let ``write`` fill a file that then appears at ``path``; its size."""
    target = Path(path)
    partial = target.with_name(f".{target.name}.{os.getpid()}.partial")
    try:
        try:
            with open(partial, "wb") as out:
                write(out)
                out.flush()
                os.fsync(out.fileno())
                size = out.tell()
            os.replace(partial, target)
        finally:
            partial.unlink(missing_ok=True)
    except OSError as error:
        raise InputError(f"cannot write the corpus {str(target)!r}: {error.strerror}") from error
    return size
