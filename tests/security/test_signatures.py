"""Whoever writes the checkpoint directory runs nothing in the job that is resumed from it."""

from __future__ import annotations

import contextlib
import grp
import json
import logging
import os
import pickle
import pwd
import shutil
import stat
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flinkplus.config import Options
from flinkplus.errors import (
    CheckpointDirectoryError,
    ConfigurationError,
    CorruptCheckpoint,
    CorruptState,
    UntrustedCheckpoint,
)
from flinkplus.graph import JobGraph
from flinkplus.protocol.program.comparison import Requests
from flinkplus.protocol.snapshot.files import StateFile, digest_of
from flinkplus.protocol.snapshot.handle import OperatorState
from flinkplus.runtime.job.plan import HEADER, Plan, find_job, identity_of, load_plan, plan_bytes
from flinkplus.runtime.job.signing import KEY_VARIABLE, default_path, find_key, make_key, read_key
from flinkplus.runtime.job.start import find_before
from flinkplus.runtime.job.upgrading.programs import put_program
from flinkplus.state.backend import SubtaskState
from flinkplus.state.durable.blobs import BLOB_MAGIC, PLAN_BLOB, ZOOKEEPER_BLOB
from flinkplus.state.durable.manifests import MANIFEST_MAGIC
from flinkplus.state.durable.ownership import JOB_FILE
from flinkplus.state.durable.seals import SigningKey, checked, sealed, signed
from flinkplus.state.durable.storage import CheckpointStorage
from flinkplus.state.file_system import file_chunks
from tests.handles import manifest_of

pytestmark = pytest.mark.security

JOB = {"name": "words", "fingerprint": "1"}
OURS, THEIRS = SigningKey(b"o" * 32, "/ours"), SigningKey(b"t" * 32, "/theirs")


class Bomb:
    """What somebody puts into a pickle."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.mark),)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "checkpoints"


def opened(root: Path, key: SigningKey | None = OURS, trust: bool = False, job_id: str | None = "job-1") -> Any:
    storage = CheckpointStorage(root, key=key, trust=trust)
    storage.signed.job_id = job_id
    return storage


def begun(root: Path, key: SigningKey = OURS) -> CheckpointStorage:
    """A job with two checkpoints and a plan."""
    storage = opened(root, key)
    storage.ownership.prepare(JOB, resume=False)
    storage.runs.begin(1)
    plan = Plan("words", "job-1", JobGraph(), Options(parallelism=3))
    storage.blobs.put_signed(PLAN_BLOB, plan_bytes(plan))
    for checkpoint in (1, 2):
        storage.manifests.write(manifest_of(checkpoint))
    return storage


# --- the plan


def with_the_checksum_right(data: bytes, body: bytes) -> bytes:
    """The most that can be done without the key: all as it was, and the checksum that of another content."""
    fields = data.partition(b"\n")[0].split(b" ")
    fields[2:4] = signed(BLOB_MAGIC, body, "", None, None).split(b" ")[2:4]
    return b" ".join(fields) + b"\n" + body


FORGERIES: dict[str, Callable[[bytes, bytes], bytes]] = {
    "unsigned": lambda data, body: signed(BLOB_MAGIC, body, "blobs/plan", None, None),
    "signed by another": lambda data, body: signed(BLOB_MAGIC, body, "blobs/plan", THEIRS, "job-1"),
    "with the old signature": with_the_checksum_right,
    "with a key's name": lambda data, body: signed(BLOB_MAGIC, body, "blobs/plan", THEIRS, "job-1").replace(
        THEIRS.name.encode(), data.split(b" ")[5], 1
    ),
    "of an older format": lambda data, body: sealed(BLOB_MAGIC, body),
}


@pytest.mark.parametrize("forgery", FORGERIES)
def test_a_forged_plan_is_not_unpickled(tmp_path: Path, root: Path, forgery: str) -> None:
    key = find_key(None, str(root), make=False)
    begun(root, key)
    assert find_job(str(root)).plan.options.parallelism == 3
    path = root / "blobs" / PLAN_BLOB
    path.write_bytes(FORGERIES[forgery](path.read_bytes(), pickle.dumps(Bomb(tmp_path / "struck"))))
    with pytest.raises((UntrustedCheckpoint, CorruptCheckpoint)) as refused:
        find_job(str(root))
    assert not (tmp_path / "struck").exists()
    if forgery != "of an older format":
        assert "trust=True" in str(refused.value) and "FLINKPLUS_KEY_FILE" in str(refused.value)


def test_who_trusts_it_runs_it(tmp_path: Path, root: Path) -> None:
    """What the check is there for."""
    begun(root, find_key(None, str(root), make=False))
    bomb = HEADER + b"\n" + pickle.dumps(Bomb(tmp_path / "struck"))
    (root / "blobs" / PLAN_BLOB).write_bytes(signed(BLOB_MAGIC, bomb, "blobs/plan", None, None))
    with pytest.raises(Exception, match="it holds"):
        find_job(str(root), trust=True)
    assert (tmp_path / "struck").exists()


def test_a_plan_that_was_signed_elsewhere_names_both_keys(root: Path) -> None:
    begun(root, THEIRS)
    with pytest.raises(UntrustedCheckpoint) as refused:
        find_job(str(root))
    ours = find_key(None, str(root), make=False)
    for told in (THEIRS.name, ours.name, os.environ[KEY_VARIABLE], "--trust", "signing_key=FILE"):
        assert told in str(refused.value)
    assert find_job(str(root), trust=True).plan.options.parallelism == 3


# --- whose directory it is


def job_of(storage: CheckpointStorage, name: str, job_id: str) -> CheckpointStorage:
    """Another job, with a plan."""
    graph, options = JobGraph(), Options(parallelism=3)
    storage.ownership.prepare(identity_of(name, graph, options), resume=False, job_id=job_id)
    storage.runs.begin(1)
    plan = Plan(name, job_id, graph, options)
    storage.blobs.put_signed(PLAN_BLOB, plan_bytes(plan))
    put_program(storage, plan)
    return storage


def put_in_the_place_of(root: Path, other: Path) -> None:
    """``other`` is a directory that the same user's key has signed."""
    shutil.rmtree(root)
    shutil.copytree(other, root)


def say_in_job_file(root: Path, **job: str) -> None:
    document = json.loads((root / JOB_FILE).read_bytes())
    document["job"].update(job)
    (root / JOB_FILE).write_text(json.dumps(document))


def resumed(root: Path, name: str, trust: bool = False) -> str:
    """As ``execute(name, resume=True)`` does, which knows the name."""
    storage = CheckpointStorage(root, key=OURS, trust=trust)
    asked = identity_of(name, JobGraph(), Options(parallelism=3))
    before = find_before(storage, name, JobGraph(), Options(parallelism=3), Requests())
    assert before is not None
    storage.ownership.prepare(asked, resume=True, upgraded=True)
    return before[0]


@pytest.mark.parametrize("forged", [False, True])
def test_the_directory_of_another_job_is_not_resumed_by_a_program(tmp_path: Path, root: Path, forged: bool) -> None:
    job_of(CheckpointStorage(root, key=OURS), "words", "job-1")
    other = tmp_path / "other"
    job_of(CheckpointStorage(other, key=OURS), "payments", "job-2")
    assert resumed(root, "words") == "job-1"
    put_in_the_place_of(root, other)
    if forged:
        say_in_job_file(root, name="words")
    with pytest.raises(CheckpointDirectoryError, match="is damaged" if forged else "belongs to another job"):
        resumed(root, "words")


def test_job_file_and_plan_are_of_one_job(tmp_path: Path, root: Path) -> None:
    job_of(CheckpointStorage(root, key=OURS), "words", "job-1")
    kept = (root / JOB_FILE).read_bytes()
    job_of(CheckpointStorage(tmp_path / "other", key=OURS), "payments", "job-2")
    put_in_the_place_of(root, tmp_path / "other")
    (root / JOB_FILE).write_bytes(kept)
    with pytest.raises(UntrustedCheckpoint, match="signed for the job 'job-2', and this is 'job-1'"):
        resumed(root, "words")
    with pytest.raises(CheckpointDirectoryError, match="name 'payments', this job has 'words'"):
        resumed(root, "words", trust=True)


def test_a_job_file_without_our_signature_is_refused(root: Path) -> None:
    job_of(CheckpointStorage(root, key=THEIRS), "words", "job-1")
    with pytest.raises(UntrustedCheckpoint, match=f"{JOB_FILE} is signed with the key"):
        resumed(root, "words")
    unsigned = CheckpointStorage(root)
    unsigned.ownership.prepare(identity_of("words", JobGraph(), Options(parallelism=3)), resume=True)
    with pytest.raises(UntrustedCheckpoint, match=f"{JOB_FILE} is not signed"):
        resumed(root, "words")


def test_who_names_the_job_resumes_no_other(root: Path) -> None:
    """From the command line only the directory is known, unless the job is named as well."""
    key = find_key(None, str(root), make=False)
    job_of(CheckpointStorage(root, key=key), "payments", "job-2")
    assert find_job(str(root)).plan.name == find_job(str(root), name="payments").plan.name == "payments"
    with pytest.raises(CheckpointDirectoryError, match="belongs to job payments, not to 'words'"):
        find_job(str(root), name="words")
    say_in_job_file(root, name="words")
    with pytest.raises(CheckpointDirectoryError, match="is damaged"):
        find_job(str(root), name="words")


def test_a_directory_that_was_moved_is_resumed_with_one_warning(
    tmp_path: Path, root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    job_of(CheckpointStorage(root, key=OURS), "words", "job-1")
    resumed(root, "words")
    assert not caplog.records
    moved = root.rename(tmp_path / "moved")
    for _ in range(2):
        assert resumed(moved, "words") == "job-1"
    assert [str(root) in record.getMessage() for record in caplog.records] == [True]


def test_trust_signs_whose_directory_it_is(root: Path) -> None:
    job_of(CheckpointStorage(root, key=THEIRS), "words", "job-1")
    trusting = CheckpointStorage(root, key=OURS, trust=True)
    load_plan(trusting, str(root))
    trusting.ownership.prepare(identity_of("words", JobGraph(), Options(parallelism=3)), resume=True)
    trusting.runs.begin(2)
    trusting.sign_again()
    assert resumed(root, "words") == "job-1"


# --- manifests and state


def test_a_manifest_that_was_forged_is_not_restored_and_not_passed_over(root: Path) -> None:
    storage = begun(root)
    body = json.dumps({"format": 1, "checkpoint": 2, "generation": 1, "subtasks": {}, "final": True}).encode()
    path = max((root / "checkpoints").iterdir())
    path.write_bytes(signed(MANIFEST_MAGIC, body, f"checkpoints/{path.name}", THEIRS, "job-1"))
    again = opened(root)
    with pytest.raises(UntrustedCheckpoint, match=path.name):
        again.manifests.latest_valid()
    assert again.manifests.read(1).checkpoint == 1
    with pytest.raises(UntrustedCheckpoint):
        again.retention.unnamed()  # as long as that is not known, nothing is removed
    assert storage.retention.drop(2) == [] and again.manifests.latest_valid()[0] == 1


def test_what_was_signed_for_one_place_or_job_is_of_no_use_for_another(tmp_path: Path, root: Path) -> None:
    begun(root)
    first, second = sorted((root / "checkpoints").iterdir())
    moved = first.read_bytes()
    second.write_bytes(moved)
    with pytest.raises(UntrustedCheckpoint, match="was not made with the key"):
        opened(root).manifests.read(2)
    other = begun(tmp_path / "other")
    other.manifests.remove(1)
    other.signed.job_id = "job-2"
    other.manifests.write(manifest_of(1))
    found = min((tmp_path / "other" / "checkpoints").iterdir())
    first.write_bytes(found.read_bytes())
    with pytest.raises(UntrustedCheckpoint, match="signed for the job 'job-2', and this is 'job-1'"):
        opened(root).manifests.read(1)
    assert opened(root, job_id="job-2").manifests.read(1).checkpoint == 1


def test_pickled_state_of_somebody_elses_is_refused(tmp_path: Path, root: Path) -> None:
    """An object of the user's in keyed state. Its file is replaced; then also what the manifest says of the file."""
    storage = begun(root)
    state = SubtaskState(tmp_path / "work", storage.state_files, "count[0]", 1)
    state.object_state("seen").put_many([b"k"], [[1]])
    handle = state.persist(state.freeze(3, OperatorState()))
    state.close()
    storage.manifests.write(manifest_of(3, subtasks={"count[0]": handle}))

    evil = SubtaskState(tmp_path / "evil", opened(tmp_path / "theirs").state_files, "count[0]", 1)
    evil.object_state("seen").put_many([b"k"], [Bomb(tmp_path / "struck")])
    forged = evil.persist(evil.freeze(3, OperatorState()))
    evil.close()
    target = root / "state" / handle.files[0].name
    target.write_bytes((tmp_path / "theirs" / "state" / forged.files[0].name).read_bytes())

    fresh = SubtaskState(tmp_path / "fresh", opened(root).state_files, "count[0]", 2)
    with pytest.raises(CorruptState):
        fresh.restore(handle)
    assert opened(root).manifests.latest_valid()[0] == 2, "the state file is not what the manifest says"

    size, checksum = digest_of(file_chunks(target))
    file = StateFile(handle.files[0].name, "base", 1, size, checksum)
    path = max((root / "checkpoints").iterdir())
    manifest = json.loads(path.read_bytes().partition(b"\n")[2])
    manifest["subtasks"]["count[0]"]["files"] = [file.to_json()]
    path.write_bytes(signed(MANIFEST_MAGIC, json.dumps(manifest).encode(), f"checkpoints/{path.name}", None, None))
    with pytest.raises(UntrustedCheckpoint):
        opened(root).manifests.latest_valid()

    trusting = opened(root, trust=True).manifests.latest_valid()
    fresh.restore(trusting[1].subtasks["count[0]"])
    fresh.object_state("seen").get_many([b"k"])
    fresh.close()
    assert (tmp_path / "struck").exists(), "without the signature it would have struck"


# --- trust


@pytest.mark.parametrize("key", [THEIRS, None])
def test_trust_signs_anew_and_ends(root: Path, key: SigningKey | None) -> None:
    before = begun(root, THEIRS)
    before.blobs.put_signed(ZOOKEEPER_BLOB, b"secret", private=True)
    if key is None:
        for path in (root / "checkpoints").iterdir():
            body = path.read_bytes().partition(b"\n")[2]
            path.write_bytes(signed(MANIFEST_MAGIC, body, "", None, None))
    trusting = opened(root, trust=True)
    assert trusting.manifests.latest_valid()[0] == 2
    trusting.runs.begin(2)
    trusting.sign_again()
    again = opened(root)
    assert again.manifests.checkpoints() == [1, 2] and again.manifests.latest_valid()[0] == 2
    assert again.blobs.get_signed(PLAN_BLOB) and again.blobs.get_signed(ZOOKEEPER_BLOB) == b"secret"
    assert stat.S_IMODE((root / "blobs" / ZOOKEEPER_BLOB).stat().st_mode) == 0o600
    assert len(list((root / "checkpoints").iterdir())) == 2
    with pytest.raises(UntrustedCheckpoint):
        opened(root, THEIRS).manifests.latest_valid()
    (root / "blobs" / PLAN_BLOB).write_bytes(signed(BLOB_MAGIC, b"plan", "blobs/plan", THEIRS, "job-1"))
    with pytest.raises(UntrustedCheckpoint):
        trusting.blobs.get_signed(PLAN_BLOB)


def test_trust_signs_what_was_loaded(tmp_path: Path, root: Path) -> None:
    """And not what is put there between that and the signature."""
    before = begun(root, THEIRS)
    before.blobs.put_signed(ZOOKEEPER_BLOB, b"secret", private=True)
    trusting = opened(root, trust=True)
    plan, loaded = trusting.blobs.get_signed(PLAN_BLOB), trusting.manifests.latest_valid()
    assert trusting.blobs.get_signed(ZOOKEEPER_BLOB) == b"secret"
    bomb = pickle.dumps(Bomb(tmp_path / "struck"))
    for name in (PLAN_BLOB, ZOOKEEPER_BLOB):
        (root / "blobs" / name).write_bytes(signed(BLOB_MAGIC, bomb, "", None, None))
    newest = max((root / "checkpoints").iterdir())
    body = json.dumps({"format": 1, "checkpoint": 2, "generation": 7, "subtasks": {}}).encode()
    newest.write_bytes(signed(MANIFEST_MAGIC, body, "", None, None))
    trusting.runs.begin(2)
    trusting.sign_again()
    again = opened(root)
    assert again.blobs.get_signed(PLAN_BLOB) == plan and again.blobs.get_signed(ZOOKEEPER_BLOB) == b"secret"
    assert (
        again.manifests.latest_valid() == loaded == trusting.manifests.latest_valid()
        and trusting.blobs.get_signed(PLAN_BLOB) == plan
    )


def test_a_damaged_manifest_is_left_as_it_is(root: Path) -> None:
    begun(root, THEIRS)
    newest = max((root / "checkpoints").iterdir())
    newest.write_bytes(newest.read_bytes()[:-1])
    trusting = opened(root, trust=True)
    trusting.runs.begin(2)
    trusting.sign_again()
    assert opened(root).manifests.latest_valid()[0] == 1 and newest.exists()


def test_a_signature_costs_the_same_whatever_is_signed() -> None:
    """It is over the line with the checksum: what is long is read once, for that."""
    short, long = (signed(MANIFEST_MAGIC, b"x" * size, "name", OURS, "job-1") for size in (1, 1 << 20))
    assert len(long.partition(b"\n")[0]) - len(short.partition(b"\n")[0]) == len(str(1 << 20)) - 1
    assert checked(MANIFEST_MAGIC, long, "name", OURS, "here") == (b"x" * (1 << 20), "job-1")


# --- the key


def test_the_users_own_key_is_made_once_and_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delenv(KEY_VARIABLE)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    path = tmp_path / "config" / "flinkplus" / "key"
    assert default_path() == path
    absent = find_key(None, str(tmp_path / "ck"), make=False)
    assert not path.exists() and "does not exist yet" in absent.where
    with caplog.at_level(logging.WARNING):
        made = find_key(None, str(tmp_path / "ck"), make=True)
    assert caplog.text.count("keep it") == 1
    assert stat.S_IMODE(path.stat().st_mode) == 0o600 and stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert find_key(None, str(tmp_path / "ck"), make=True) == made
    assert list(path.parent.iterdir()) == [path] and made.secret.hex() not in repr(made)
    monkeypatch.delenv("XDG_CONFIG_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert default_path() == tmp_path / "home" / ".config" / "flinkplus" / "key"


def test_jobs_that_begin_at_once_make_one_key(tmp_path: Path) -> None:
    path = tmp_path / "config" / "key"
    begin = threading.Barrier(8)
    found: list[SigningKey] = []

    def work() -> None:
        begin.wait()
        make_key(path)
        found.append(read_key(path))

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 8 and len({key.secret for key in found}) == 1 and list(path.parent.iterdir()) == [path]


def test_an_option_wins_over_the_environment_and_that_over_the_users_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = [tmp_path / name for name in ("option", "environment")]
    for path in paths:
        make_key(path)
    option, environment = paths
    monkeypatch.setenv(KEY_VARIABLE, str(environment))
    assert find_key(str(option), "s3://bucket/ck", make=False) == read_key(option)
    assert find_key(None, "s3://bucket/ck", make=False) == read_key(environment)
    assert find_key(None, None, make=True).where == "one of this run's own", "its checkpoints go away with it"
    for option_given, named in ((None, KEY_VARIABLE), (str(tmp_path / "none"), "signing_key")):
        monkeypatch.setenv(KEY_VARIABLE, str(tmp_path / "none"))
        with pytest.raises(ConfigurationError, match=f"{named}: .* does not exist; .*openssl rand"):
            find_key(option_given, "s3://bucket/ck", make=True)


@pytest.mark.parametrize("mode", [0o644, 0o602, 0o620, 0o660, 0o604])
def test_a_key_that_others_may_read_or_write_is_refused(tmp_path: Path, mode: int) -> None:
    make_key(tmp_path / "key")
    (tmp_path / "key").chmod(mode)
    with pytest.raises(ConfigurationError, match="not yours alone"):
        read_key(tmp_path / "key")


def test_a_key_that_a_group_may_read_is_taken(tmp_path: Path) -> None:
    """As secrets are that Kubernetes mounts, behind a link."""
    make_key(tmp_path / "..data")
    (tmp_path / "..data").chmod(0o440)
    (tmp_path / "key").symlink_to(tmp_path / "..data")
    assert read_key(tmp_path / "key").secret == read_key(tmp_path / "..data").secret


def test_a_key_in_a_directory_that_others_may_write_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shared, own, ck = (tmp_path / name for name in ("shared", "own", "ck"))
    for folder in (shared, own / "inner", ck):
        folder.mkdir(parents=True)
    make_key(own / "inner" / "key")
    make_key(shared / "key")
    (shared / "link").symlink_to(own / "inner" / "key")
    (own / "by-shared").symlink_to(shared / "link")
    shared.chmod(0o777)
    monkeypatch.chdir(shared)
    for path in (shared / "key", shared / "link", own / "by-shared", Path("key"), own / "../shared/key"):
        with pytest.raises(ConfigurationError, match=r"other users.*shared.*, mode 777\): chmod go-w"):
            find_key(str(path), str(ck), make=False)
    kept = find_key(str(own / "inner" / "key"), str(ck), make=False)
    own.chmod(0o757)
    with pytest.raises(ConfigurationError, match="can be replaced"):
        find_key(str(own / "inner" / "key"), str(ck), make=False)
    own.chmod(0o755)
    shared.chmod(0o1777)  # as /tmp: others cannot replace what is ours
    assert find_key(str(shared / "link"), str(ck), make=False).secret == kept.secret
    (own / "circle").symlink_to("circle")
    with pytest.raises(ConfigurationError, match="symbolic links"):
        find_key(str(own / "circle"), str(ck), make=False)


def test_a_directory_that_a_private_group_may_write_is_no_ones_elses(tmp_path: Path) -> None:
    """As home directories are where each user has a group of the same name."""
    make_key(tmp_path / "key")
    tmp_path.chmod(0o770)
    mine = pwd.getpwuid(os.geteuid())
    is_private = grp.getgrgid(tmp_path.stat().st_gid).gr_name == mine.pw_name
    with contextlib.nullcontext() if is_private else pytest.raises(ConfigurationError, match="can be replaced"):
        find_key(str(tmp_path / "key"), "s3://bucket/ck", make=False)
    for group in range(60_000, 60_100):
        with contextlib.suppress(KeyError):
            grp.getgrgid(group)
            continue
        with contextlib.suppress(PermissionError):
            os.chown(tmp_path, -1, group)
            with pytest.raises(ConfigurationError, match="can be replaced"):
                find_key(str(tmp_path / "key"), "s3://bucket/ck", make=False)
        break


def test_a_key_is_in_the_checkpoint_directory_however_that_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ck = tmp_path / "ck"
    ck.mkdir()
    make_key(ck / "key")
    make_key(tmp_path / "key")
    (ck / "link").symlink_to(tmp_path / "key")
    (tmp_path / "link").symlink_to(ck)
    monkeypatch.chdir(tmp_path)
    for directory in (str(ck), ck.as_uri(), str(tmp_path / "link"), "ck", "./link"):
        for key in (ck / "key", ck / "link", tmp_path / "link" / "key", Path("ck/key")):
            with pytest.raises(ConfigurationError, match="is in the checkpoint directory"):
                find_key(str(key), directory, make=False)
        assert find_key("key", directory, make=False).secret == read_key(tmp_path / "key").secret
    with pytest.raises(ConfigurationError, match="is a URI; give the path"):
        find_key((tmp_path / "key").as_uri(), str(ck), make=False)


def test_what_is_no_key(tmp_path: Path) -> None:
    for text in ("", "x" * 64, "0" * 63, "0" * 65, "0" * 64 + "\n" + "0" * 64):
        (tmp_path / "key").write_text(text)
        (tmp_path / "key").chmod(0o600)
        with pytest.raises(ConfigurationError, match="is not a key"):
            read_key(tmp_path / "key")
    os.mkfifo(tmp_path / "pipe", 0o600)
    with pytest.raises(ConfigurationError, match="no regular file"):
        read_key(tmp_path / "pipe")
    with pytest.raises(ConfigurationError, match="is in the checkpoint directory"):
        find_key(str(tmp_path / "ck" / "key"), str(tmp_path / "ck"), make=False)


def test_no_place_for_a_key_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(KEY_VARIABLE)
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "file"))
    with pytest.raises(ConfigurationError, match=r"cannot be (kept|read)"):
        find_key(None, "s3://bucket/ck", make=True)
    monkeypatch.delenv("XDG_CONFIG_HOME")

    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", homeless)
    with pytest.raises(ConfigurationError, match=f"{KEY_VARIABLE}.*openssl rand"):
        find_key(None, "s3://bucket/ck", make=True)
