"""What a job's credentials are, and where they do not show."""

from __future__ import annotations

from pathlib import Path

import pytest

from flinkplus.config import options_from
from flinkplus.errors import ConfigurationError
from flinkplus.runtime.transport.auth.credentials import Credentials


def test_each_job_has_a_secret_of_its_own_that_does_not_show() -> None:
    options = options_from({}, {"zookeeper_acl": "job"})
    one, other = Credentials.made(options, "a"), Credentials.made(options, "b")
    assert len(one.secret) == 32 and one.secret != other.secret and one.zookeeper != other.zookeeper
    assert one.zookeeper is not None and one.zookeeper.startswith("flinkplus-a:")
    assert one.secret.hex() not in one.zookeeper, "what is told to ZooKeeper says nothing of the secret"
    assert repr(one) == "Credentials()"
    for given, closed in (
        ({}, True),
        ({"zookeeper": "host:2181"}, False),
        ({"zookeeper": "host:2181", "zookeeper_acl": "job"}, True),
        ({"zookeeper_acl": "open"}, False),
    ):
        made = Credentials.made(options_from({}, given), "a")
        assert (made.zookeeper is not None) == closed
        assert (made.registry is not None) == ("zookeeper" not in given), "the job's own server is the job's alone"
    assert made.tls is None and "PRIVATE" not in repr(made)
    assert Credentials.made(options_from({}, {"recovery": "rollback"}), "a").registry is None, "it has no server"
    tls = Credentials.made(options_from({}, {"tls": True}), "a")
    assert tls.registry is not None and tls.tls is not None
    assert tls.registry != tls.tls, "other certificates of a directory that was given open no session"


def test_credentials_for_zookeeper_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "auth"
    path.write_text("me:pass:word\n")
    options = options_from({}, {"zookeeper_acl": str(path)})
    assert Credentials.made(options, "a").zookeeper == "me:pass:word"
    for text in ("", "me", "me:", ":word", "a:b\nc:d"):
        path.write_text(text)
        with pytest.raises(ConfigurationError, match="USER:PASSWORD"):
            Credentials.made(options, "a")
    with pytest.raises(ConfigurationError, match="cannot be read"):
        Credentials.made(options_from({}, {"zookeeper_acl": str(tmp_path / "nothing")}), "a")
