"""Secrets of connectors: they are not stored with the job, so a process that resumes it must be given them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping

from flinkplus.errors import ConfigurationError


def known_secrets(
    owner: str, names: Iterable[str], given: Mapping[str, str], variable: Callable[[str], str], kind: str = ""
) -> dict[str, str]:
    """The secrets that this process was ``given``, and those of ``names`` from the environment.

    ``owner``: the source or sink, for the error.
    ``variable``: returns the environment variable of a secret.
    ``kind``: what a name is, for the error.

    Raises ``ConfigurationError`` if one of ``names`` is missing.
    """
    found = dict(given)
    for name in names:
        if name not in found and variable(name) in os.environ:
            found[name] = os.environ[variable(name)]
        if name not in found:
            raise ConfigurationError(
                f"{owner}: {kind}{name!r} is not known here, since it is not stored with the job: set the "
                f"environment variable {variable(name)}"
            )
    return found
