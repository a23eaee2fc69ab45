"""The programs and commands that README.md and docs/ show, as they stand there.

A *block* is what is between two fences. A *command* is a line of a shell block, without its comment, with the lines
that a backslash joins to it.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
FENCED = re.compile(r"^```([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LOOP = re.compile(r"until (.*?); do .*; done$")


@dataclass(frozen=True)
class Block:
    """``number``: which block of its page and language it is, from 1."""

    page: str
    language: str
    number: int
    text: str

    def __str__(self) -> str:
        return f"{self.page}, {self.language} {self.number}"


@dataclass(frozen=True)
class Command:
    """``words``: as the shell splits it; of a loop or behind ``sudo``, the command alone."""

    page: str
    line: str
    words: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.page}: {self.line}"

    @property
    def synopsis(self) -> bool:
        """Whether it says what may be given, and cannot be typed as it is: ``[--force]``."""
        return "[--" in self.line

    @property
    def arguments(self) -> tuple[str, ...] | None:
        """What ``flinkplus`` is called with, where it is."""
        for at, word in enumerate(self.words):
            if word in ("flinkplus", ".venv/bin/flinkplus"):
                return self.words[at + 1 :]
        return None


def blocks_of(page: str, text: str) -> list[Block]:
    """The blocks of a page, in order."""
    found: list[Block] = []
    for language, body in FENCED.findall(text):
        number = 1 + sum(block.language == language for block in found)
        found.append(Block(page, language, number, body))
    return found


def all_blocks() -> list[Block]:
    """Those of every page."""
    return [
        block for page in PAGES for block in blocks_of(str(page.relative_to(ROOT)), page.read_text(encoding="utf-8"))
    ]


def commands_of(block: Block) -> list[Command]:
    """The commands of a shell block, in order."""
    found = []
    for line in block.text.replace("\\\n", " ").splitlines():
        loop = LOOP.match(line)
        words = shlex.split(loop[1] if loop else line, comments=True)
        if words:
            found.append(Command(block.page, line.strip(), tuple(words[1:] if words[0] == "sudo" else words)))
    return found
