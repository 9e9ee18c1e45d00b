#!/bin/sh
# The configuration and the run directory go. Records that could not be delivered stay.
set -e
rm -rf /etc/kafka-sidecar /run/kafka-sidecar
rmdir /var/lib/kafka-sidecar/dead-letters /var/lib/kafka-sidecar 2>/dev/null || true
if [ -d /var/lib/kafka-sidecar ]; then
    echo "kafka-sidecar: /var/lib/kafka-sidecar is kept, it holds records: see docs/operations.md, Dead letters."
fi
