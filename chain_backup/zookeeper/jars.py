"""Where Java is, and the jars of ZooKeeper: PySpark ships them."""

from __future__ import annotations

import os
import platform
import shutil
from collections.abc import Sequence
from pathlib import Path

from chain_backup.zookeeper.errors import ZooKeeperStartError

JARS = ("zookeeper", "slf4j-api", "log4j-api", "log4j-core", "log4j-slf4j2-impl", "metrics-core", "snappy-java")
JARS_OF_TLS = ("netty-buffer", "netty-codec", "netty-common", "netty-handler", "netty-resolver", "netty-transport")
JAR_OF_NATIVE_TLS = "netty-tcnative-classes"
JAR_OF_NATIVE_LIBRARY = "netty-tcnative-boringssl-static-*-{system}-{machine}.jar"


def find_jars() -> Path:
    """The directory of Spark's jars, by ``SPARK_HOME`` or the PySpark package. Raises ``ZooKeeperStartError``."""
    import pyspark

    roots = (os.environ.get("SPARK_HOME"), Path(pyspark.__file__).parent)
    places = [Path(root) / "jars" for root in roots if root]
    for place in places:
        if any(place.glob("zookeeper-*.jar")):
            return place
    raise ZooKeeperStartError(
        f"no ZooKeeper jars in {', '.join(map(str, places))}; name an ensemble instead (--zookeeper HOST:PORT,...)"
    )


def class_path(jars: Path, names: Sequence[str]) -> str:
    found = {name: sorted(jars.glob(f"{name}-*.jar")) for name in names}
    missing = [name for name, paths in found.items() if not paths]
    if missing:
        raise ZooKeeperStartError(f"{jars} lacks the jars of {', '.join(missing)}")
    return os.pathsep.join(str(path) for paths in found.values() for path in paths)


def native_tls(jars: Path) -> list[Path]:
    """Jars of Netty's native TLS, if there are any for this machine: a handshake takes a quarter of Java's time."""
    system = {"Linux": "linux", "Darwin": "osx"}.get(platform.system(), "none")
    machine = {"AMD64": "x86_64", "arm64": "aarch64"}.get(platform.machine(), platform.machine())
    classes = sorted(jars.glob(f"{JAR_OF_NATIVE_TLS}-*.jar"))
    library = sorted(jars.glob(JAR_OF_NATIVE_LIBRARY.format(system=system, machine=machine)))
    return classes + library if classes and library else []


def find_java(given: str | None) -> str:
    home = os.environ.get("JAVA_HOME")
    java = given or (str(Path(home) / "bin" / "java") if home else "java")
    path = shutil.which(java)
    if path is None:
        raise ZooKeeperStartError(f"the embedded ZooKeeper needs Java, but {java!r} was not found")
    return path
