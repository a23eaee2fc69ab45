"""A job whose checkpoints were signed with a key that is not here: refused, and with trust its own from then on."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from flinkplus import JobHandle, StreamEnvironment, UntrustedCheckpoint
from flinkplus.runtime.job.signing import KEY_VARIABLE, make_key
from tests.integration.conftest import assert_exact, expected_counts, wait_for_checkpoint
from tests.typed import Command

pytestmark = [pytest.mark.integration, pytest.mark.security]


@pytest.mark.long
def test_a_job_is_resumed_with_its_key_or_with_trust(
    spark: SparkSession, corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: Command
) -> None:
    kept, out = tmp_path / "checkpoints", tmp_path / "out"
    theirs, ours = tmp_path / "theirs", tmp_path / "ours"
    make_key(theirs)
    make_key(ours)

    def run(rate: float, trust: bool = False, **key: Path) -> JobHandle:
        env = StreamEnvironment(spark, parallelism=2, checkpoint_interval=0.1, checkpoint_dir=kept, **key)  # type: ignore[arg-type]
        words = env.read_text(corpus, name="lines").tokenize(name="tokenize").throttle(rate)
        words.key_by("word").count(name="count").to_parquet(str(out), name="out")
        return env.execute("signed", resume="auto", trust=trust)

    with run(20_000.0, signing_key=theirs) as first:
        wait_for_checkpoint(first, 2)
    monkeypatch.setenv(KEY_VARIABLE, str(ours))
    with pytest.raises(UntrustedCheckpoint, match="signed with the key"):
        run(20_000.0)
    with pytest.raises(UntrustedCheckpoint, match="signed with the key"):
        StreamEnvironment.resume(spark, kept)
    code, printed, told = command("resume", kept)
    assert (code, printed) == (2, "") and "--trust" in told and str(ours) in told

    with StreamEnvironment.resume(spark, kept, signing_key=theirs) as again:
        assert again.restored_from is not None
        wait_for_checkpoint(again, 1)
    with run(20_000.0, trust=True) as trusted:
        assert trusted.restored_from is not None
        wait_for_checkpoint(trusted, 1)
    with pytest.raises(UntrustedCheckpoint):
        StreamEnvironment.resume(spark, kept, signing_key=theirs)
    with run(1_000_000.0) as last:
        assert last.restored_from is not None
        last.await_finish(60)
    assert_exact(out, expected_counts(corpus))
