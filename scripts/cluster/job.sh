#!/bin/sh
# job.sh COMMAND...: run COMMAND once the cluster of FLINKPLUS_MASTER and FLINKPLUS_ZOOKEEPER answers.
set -eu
. "$(dirname "$0")/common.sh"
# shellcheck disable=SC2046
await "${FLINKPLUS_MASTER#spark://}" $(echo "$FLINKPLUS_ZOOKEEPER" | tr ',' ' ')
exec "$@"
