#!/bin/sh
# zookeeper.sh ID HOST...: server number ID of an ensemble on these hosts, which are numbered from 1.
set -eu
. "$(dirname "$0")/common.sh"
id=$1
shift

data=$SCRATCH/zookeeper
mkdir -p "$data"
echo "$id" >"$data/myid"
{
    # A tick of 100 ms allows sessions of 0.2 s and more; who joins has 10 s, who lags is dropped after 2 s.
    printf '%s\n' tickTime=100 initLimit=100 syncLimit=20 maxSessionTimeout=60000 "dataDir=$data" \
        clientPort=2181 maxClientCnxns=0 admin.enableServer=false 4lw.commands.whitelist=srvr,ruok forceSync=no \
        preAllocSize=256 autopurge.purgeInterval=1
    number=0
    for host in "$@"; do
        number=$((number + 1))
        echo "server.$number=$host:2888:3888"
    done
} >"$data/zoo.cfg"
cat >"$data/log4j2.properties" <<'LOGGING'
status = off
appender.log.type = Console
appender.log.name = log
appender.log.layout.type = PatternLayout
appender.log.layout.pattern = %d %-5p %c{1}: %m%n%throwable{4}
rootLogger.level = warn
rootLogger.appenderRef.log.ref = log
LOGGING

class_path=
for jar in zookeeper slf4j-api log4j-api log4j-core log4j-slf4j2-impl metrics-core snappy-java; do
    for found in "$SPARK_HOME/jars/$jar"-[0-9]*.jar "$SPARK_HOME/jars/$jar"-jute-*.jar; do
        [ -e "$found" ] && class_path=$class_path:$found
    done
done
# shellcheck disable=SC2086
exec "${JAVA_HOME:+$JAVA_HOME/bin/}java" -Xmx96m $SMALL_JVM -XX:+ExitOnOutOfMemoryError -Dzookeeper.jmx.log4j.disable=true \
    -Dlog4j2.disable.jmx=true "-Dlog4j2.configurationFile=file:$data/log4j2.properties" -cp "${class_path#:}" \
    org.apache.zookeeper.server.quorum.QuorumPeerMain "$data/zoo.cfg"
