"""What several tests of replication begin with."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.chain_backup.replication.replica_cluster import Cluster


@pytest.fixture
def slow(tmp_path: Path) -> Iterator[Cluster]:
    """Two slots in one chain; what agents do beside the stream, or leave for later, waits until it is asked for."""
    made = Cluster(tmp_path, slots=3, postpone=True)
    made.form(0, 1)
    made.open_head()
    yield made
    made.close()
