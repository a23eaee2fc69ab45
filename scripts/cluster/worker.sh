#!/bin/sh
# worker.sh MASTER: a Spark worker with WORKER_CORES (8) and WORKER_MEMORY (1g); it waits for the master.
set -eu
. "$(dirname "$0")/common.sh"
await "$1:7077"
exec "$SPARK_HOME/bin/spark-class" org.apache.spark.deploy.worker.Worker --host "$HOST" --work-dir "$SCRATCH/work" \
    --cores "${WORKER_CORES:-8}" --memory "${WORKER_MEMORY:-1g}" "spark://$1:7077"
