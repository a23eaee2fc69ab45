"""Figures as JSON files: ``--json`` of the command line, and the documents of experiments.

Rules: readers see the old file or the new one, never a part of it. A check before a long run leaves no trace.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from flinkplus.errors import ConfigurationError


def check_json(path: str | Path | None) -> None:
    """Raises ``ConfigurationError`` when figures could not be written to ``path`` at the end of a long run."""
    if path is None:
        return
    target = Path(path)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        if target.exists():
            with target.open("ab"):
                pass
        if _replaceable(target):
            partial = _partial(target)
            partial.touch()
            partial.unlink()
    except OSError as error:
        raise ConfigurationError(f"cannot write --json {path}: {error}") from error


def write_json(path: str | Path | None, figures: dict[str, Any]) -> None:
    """Write figures to a file, when one is asked for. Raises ``ConfigurationError`` when that fails."""
    if path is None:
        return
    target = Path(path)
    text = json.dumps(figures, indent=1, ensure_ascii=False) + "\n"
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        if _replaceable(target):
            _partial(target).write_text(text, encoding="utf-8")
            _partial(target).replace(target)
        else:
            target.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigurationError(f"cannot write --json {path}: {error}") from error


def _replaceable(target: Path) -> bool:
    """Whether the file can be replaced; devices, pipes and symbolic links (``/dev/stdout``) are written through."""
    return not target.is_symlink() and (target.is_file() or not target.exists())


def _partial(target: Path) -> Path:
    return target.with_name(f".{target.name}.partial")
