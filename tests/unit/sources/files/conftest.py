"""Readers that a failed test has left open are closed, so that their threads disturb no other test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.unit.sources.files.driven import Driven


@pytest.fixture(autouse=True)
def closed_readers() -> Iterator[None]:
    yield
    for run in list(Driven.opened):
        run.close()
