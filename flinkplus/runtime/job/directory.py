"""The job's own directory in this machine's temporary space, and its lock of the checkpoint directory.

Rules: ``remove`` releases both at every end of the job.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from pyspark.sql import SparkSession

from flinkplus.config import Options
from flinkplus.errors import ConfigurationError
from flinkplus.runtime.host.cleanup import remove_tree
from flinkplus.runtime.host.scratch import JOB_PREFIX, mark_over, mark_running, sweep_jobs, wait_for_slots
from flinkplus.runtime.job.claim import Claim
from flinkplus.runtime.job.local_masters import local_master
from flinkplus.state.files import absolute

REMOVE_PATIENCE_S = 5.0


class JobDirectory:
    """The job's own directory: scratch space of the slots (local masters), and the checkpoints if the user gave no
    directory for them."""

    def __init__(self, spark: SparkSession, options: Options) -> None:
        master = spark.sparkContext.master or ""
        self.local = local_master(master) is not None
        self.one_host = self.local or master.startswith("local-cluster")
        if options.checkpoint_dir is None and not self.one_host:
            raise ConfigurationError(
                f"on {master} the slots run on other machines: give checkpoint_dir, a directory or URI that all of "
                "them can reach"
            )
        try:
            sweep_jobs(options.work_dir)
            self.path = Path(tempfile.mkdtemp(prefix=JOB_PREFIX, dir=options.work_dir))
        except OSError as error:
            raise ConfigurationError(f"work_dir {options.work_dir!r} cannot be used: {error}") from error
        self._alive: int | None = mark_running(self.path)
        self.ephemeral = options.checkpoint_dir is None
        self._ensemble = options.zookeeper is not None
        self._claim: Claim | None = None
        self.checkpoints = absolute(options.checkpoint_dir or str(self.path / "checkpoints"))
        self.scratch = str(self.path) if self.local else None

    def claim(self, resume: bool) -> None:
        """Lock the checkpoints for this driver until ``remove``. Raises ``JobRunsElsewhere``."""
        if not self.ephemeral:
            self._claim = Claim(self.checkpoints, tried=resume and self._ensemble)

    def remove(self, run: str | None = None) -> None:
        """Remove the directory once the slots of this ``run`` have left it; ``None``: no slot was started."""
        mark_over(self.path)
        if run is not None:
            wait_for_slots(run, self.path, REMOVE_PATIENCE_S)
        remove_tree(self.path, REMOVE_PATIENCE_S)
        if self._claim is not None:
            self._claim.release()
        alive, self._alive = self._alive, None
        if alive is not None:
            os.close(alive)
