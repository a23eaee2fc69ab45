# Sourced by the services of the test cluster (docker-compose.yml). Everything comes out of the PySpark package.
# shellcheck shell=sh
SPARK_HOME=${SPARK_HOME:-$(python -c 'import importlib.util as u; print(u.find_spec("pyspark").submodule_search_locations[0])')}
SCRATCH=${TMPDIR:-/tmp}
HOST=$(cat /proc/sys/kernel/hostname)
# Many JVMs share few processors here: start quickly, compile little, collect with one thread.
SMALL_JVM="-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:-UsePerfData -Djava.io.tmpdir=$SCRATCH -Djava.net.preferIPv4Stack=true"
export SPARK_HOME
export SPARK_LOCAL_DIRS="$SCRATCH"
export SPARK_LOCAL_HOSTNAME="$HOST"
export SPARK_DAEMON_MEMORY="${SPARK_DAEMON_MEMORY:-256m}"
export SPARK_DAEMON_JAVA_OPTS="${SPARK_DAEMON_JAVA_OPTS:-} $SMALL_JVM"
export SPARK_LAUNCHER_OPTS="$SMALL_JVM"

# await HOST:PORT...: returns when somebody listens at each.
await() {
    python -S -c '
import socket, sys, time
for address in sys.argv[1:]:
    host, _, port = address.rpartition(":")
    while True:
        try:
            socket.create_connection((host, int(port)), 1).close()
            break
        except OSError:
            time.sleep(0.1)
' "$@"
}
