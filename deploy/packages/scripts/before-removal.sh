#!/bin/sh
# Before the files go, not at an upgrade: the daemon delivers what it has, at most daemon.shutdown_timeout_s.
set -e
if [ -d /run/systemd/system ]; then
    systemctl disable --now kafka-sidecar || true
fi
