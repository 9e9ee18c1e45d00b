#!/bin/sh
# After an installation or an upgrade, of the deb and of the rpm. A daemon that runs is replaced by a takeover: clients
# keep sending. A new installation starts nothing: its configuration does not know your brokers yet.
set -e
if command -v systemd-sysusers >/dev/null; then
    systemd-sysusers kafka-sidecar.conf
elif ! getent passwd kafka-sidecar >/dev/null; then
    groupadd --system kafka-sidecar
    useradd --system --gid kafka-sidecar --home-dir /run/kafka-sidecar --no-create-home --shell /usr/sbin/nologin kafka-sidecar
fi
if command -v systemd-tmpfiles >/dev/null; then
    systemd-tmpfiles --create kafka-sidecar.conf
else
    install -d -m 0750 -o kafka-sidecar -g kafka-sidecar /run/kafka-sidecar
    install -d -m 0700 -o kafka-sidecar -g kafka-sidecar /var/lib/kafka-sidecar
fi
mkdir -p /etc/kafka-sidecar
chown root:kafka-sidecar /etc/kafka-sidecar
[ ! -e /etc/kafka-sidecar/sidecar.toml ] || chown root:kafka-sidecar /etc/kafka-sidecar/sidecar.toml
chmod 0750 /etc/kafka-sidecar
[ ! -e /etc/kafka-sidecar/sidecar.toml ] || chmod 0640 /etc/kafka-sidecar/sidecar.toml
if [ -d /run/systemd/system ]; then
    systemctl daemon-reload
    if systemctl --quiet is-active kafka-sidecar; then
        systemctl reload kafka-sidecar
        exit 0
    fi
fi
cat <<'END'
kafka-sidecar: name your brokers in /etc/kafka-sidecar/sidecar.toml, then
    kafka-sidecar config check -c /etc/kafka-sidecar/sidecar.toml
    systemctl enable --now kafka-sidecar
Users who may send records join the group kafka-sidecar (usermod --append --groups kafka-sidecar USER), and log in
again. The run directory is /run/kafka-sidecar. Programs need the stub: pip install its wheel, which "make wheels" builds
in a clone of the repository, or run "pip install ." there.
END
