"""The demo text and the made-up one."""

from __future__ import annotations

import hashlib
from collections import Counter
from pathlib import Path

import pytest

from flinkplus import corpus
from flinkplus.corpus import demo_file, demo_lines, word_of_rank, write_corpus
from flinkplus.errors import ConfigurationError, InputError


def test_demo_text_is_prose(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    lines = demo_lines()
    words = Counter(word for line in lines for word in line.lower().split())
    assert words.total() > 30_000
    assert words["the"] > 1000
    assert not any("\n" in line for line in lines)
    assert demo_file().read_text().split("\n") == [*lines, ""]
    assert demo_file().is_relative_to(tmp_path)


def test_every_rank_has_its_own_word() -> None:
    words = [word_of_rank(rank) for rank in range(30_000)]
    assert len(set(words)) == len(words)
    assert words[:3] == ["ta", "na", "sa"]
    assert words[99:102] == ["qu", "tata", "tana"]
    assert [len(word) for word in words] == sorted(len(word) for word in words)


@pytest.mark.parametrize(("words", "words_per_line"), [(0, 10), (1, 10), (10, 10), (1234, 10), (7, 1), (35, 20)])
def test_number_of_words_and_lines(
    tmp_path: Path, words: int, words_per_line: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(corpus, "_CHUNK_WORDS", 100)
    write_corpus(tmp_path / "c", words, 50, 1, words_per_line)
    text = (tmp_path / "c").read_text()
    lines = text.splitlines()
    assert len(lines) == -(-words // words_per_line)
    assert [len(line.split(" ")) for line in lines[:-1]] == [words_per_line] * (len(lines) - 1)
    assert len(text.split()) == words
    assert text == "".join(f"{line}\n" for line in lines)


def test_words_follow_zipf(tmp_path: Path) -> None:
    write_corpus(tmp_path / "c", 200_000, 1000, 7)
    counts = Counter((tmp_path / "c").read_text().split())
    harmonic = sum(1 / r for r in range(1, 1001))
    for rank in (0, 1, 9, 99):
        expected = 200_000 / harmonic / (rank + 1)
        assert abs(counts[word_of_rank(rank)] - expected) < 5 * expected**0.5
    assert set(counts) <= {word_of_rank(rank) for rank in range(1000)}


def test_uniform_words_are_equally_likely(tmp_path: Path) -> None:
    write_corpus(tmp_path / "c", 200_000, 1000, 7, uniform=True)
    counts = Counter((tmp_path / "c").read_text().split())
    assert len(counts) == 1000
    assert all(abs(count - 200) < 6 * 200**0.5 for count in counts.values())


def test_the_same_arguments_give_the_same_bytes(tmp_path: Path) -> None:
    for name, seed in (("a", 3), ("b", 3), ("c", 4)):
        write_corpus(tmp_path / name, 5000, 200, seed)
    a, b, c = ((tmp_path / name).read_bytes() for name in "abc")
    assert a == b != c
    assert hashlib.sha256(a).hexdigest().startswith("dc11050e34357565")


def test_bad_arguments(tmp_path: Path) -> None:
    for words, vocabulary, words_per_line in ((-1, 1, 1), (1, 0, 1), (1, 1, 0)):
        with pytest.raises(ConfigurationError, match=f"not {words}, {vocabulary} and {words_per_line}"):
            write_corpus(tmp_path / "c", words, vocabulary, 1, words_per_line)
    with pytest.raises(InputError, match="nowhere"):
        write_corpus(tmp_path / "nowhere" / "c", 1, 1, 1)


def test_a_file_appears_when_it_is_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(corpus, "_text", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        write_corpus(tmp_path / "c", 10, 10, 1)
    assert list(tmp_path.iterdir()) == []
