"""What must hold of every name that a decoder lets through, said without the product's own check.

Rule: a name that would lead out of a directory, or is of another form than its format has, is an ``AssertionError``,
which no target expects.
"""

from __future__ import annotations

import posixpath
import string

from flinkplus.protocol.snapshot.files import StagedFile
from flinkplus.protocol.snapshot.handle import SnapshotHandle
from flinkplus.protocol.snapshot.manifest import Manifest

ALLOWED = frozenset(string.ascii_letters + string.digits + "_+-.,=~%[] ")
TOP = "/top/of/all"


def assert_inside(name: object, parts: int = 1, longest: int = 200) -> None:
    """``name`` stays within any directory that it is joined to, ``parts`` levels down."""
    if not isinstance(name, str):
        raise AssertionError(f"{name!r} was taken for a name")
    joined = posixpath.join(TOP, name)
    pieces = name.split("/")
    if posixpath.normpath(joined) != f"{TOP}/{name}" or len(pieces) != parts:
        raise AssertionError(f"{name!r} leads elsewhere")
    for piece in pieces:
        if not piece or piece[0] == "." or len(piece) > longest or not ALLOWED.issuperset(piece):
            raise AssertionError(f"{name!r} has a part that no name has")


def assert_any_letters(name: str, parts: int = 1) -> None:
    """As ``assert_inside``, for a name that the user's values or another program have made."""
    pieces = name.split("/")
    if posixpath.normpath(posixpath.join(TOP, name)) != f"{TOP}/{name}" or len(pieces) != parts or "\0" in name:
        raise AssertionError(f"{name!r} leads elsewhere")
    if any(piece[0] == "." or len(piece.encode()) > 255 for piece in pieces):
        raise AssertionError(f"{name!r} has a part that no name has")


def assert_staged(staged: StagedFile) -> None:
    assert_inside(staged.name)
    if staged.folder:
        assert_any_letters(staged.folder, staged.folder.count("/") + 1)


def assert_subtask(name: object) -> None:
    """A subtask's name, which is a single part."""
    assert_inside(name, longest=10_000)


def assert_handle(handle: SnapshotHandle) -> None:
    """Everything in a snapshot handle that becomes a path."""
    for file in handle.files:
        for each in (file, *file.replaces):
            assert_inside(each.name, 2)
    for part in handle.operator_state.operators.values():
        for staged in part.staged:
            assert_staged(staged)


def assert_manifest(manifest: Manifest) -> None:
    """Everything in a manifest that becomes a path."""
    for subtask, handle in manifest.subtasks.items():
        assert_subtask(subtask)
        assert_handle(handle)
    for committed in manifest.commits.values():
        for staged in committed.files:
            assert_staged(staged)
