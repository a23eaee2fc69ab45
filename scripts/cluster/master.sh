#!/bin/sh
# master.sh: the Spark master of the host.
set -eu
. "$(dirname "$0")/common.sh"
exec "$SPARK_HOME/bin/spark-class" org.apache.spark.deploy.master.Master --host "$HOST" --port 7077 --webui-port 8080
