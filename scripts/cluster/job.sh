#!/bin/sh
# job.sh COMMAND...: run COMMAND once the cluster of FLINKPLUS_MASTER and FLINKPLUS_ZOOKEEPER answers.
set -eu
. "$(dirname "$0")/common.sh"
for address in "${FLINKPLUS_MASTER#spark://}" $(echo "$FLINKPLUS_ZOOKEEPER" | tr ',' ' '); do
    until answers "${address%:*}" "${address#*:}"; do sleep 0.2; done
done
exec "$@"
