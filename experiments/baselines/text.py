"""The text of ``wordcount``: made up, the same file for all engines.

Rules: it is as long as in the other experiments, and at least ``WORDS_PER_WORD`` times its vocabulary, so that most of
the vocabulary occurs: of uniform words 95 %. By Zipf's law a few words make up most of any text: of a million words,
the 10,000 most frequent ones make up two thirds of it, so memory for 10,000 keys answers most look-ups. Uniform words
are the hardest for a state that is larger than its memory: memory for *m* keys of *v* answers a share of *m / v*.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from experiments.harness.running import VOCABULARY, WORDS
from flinkplus.corpus import write_corpus

WORDS_PER_WORD = 3


@dataclass(frozen=True)
class Text:
    """``vocabulary``: different words that it is drawn from. ``uniform``: all equally likely; else by Zipf's law."""

    vocabulary: int = VOCABULARY
    uniform: bool = False

    @property
    def words(self) -> int:
        """Its length."""
        return max(WORDS, WORDS_PER_WORD * self.vocabulary)

    def write(self, path: Path, seed: int) -> None:
        """Write it to a file."""
        write_corpus(path, self.words, self.vocabulary, seed, uniform=self.uniform)
