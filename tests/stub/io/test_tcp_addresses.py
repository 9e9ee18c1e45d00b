"""Addresses over TCP: what a producer needs for one, and how it is read."""

from __future__ import annotations

from pathlib import Path

import pytest

from client_stub import Producer
from client_stub.contract.tcp import KEY_FILE_VARIABLE, join_address, split_address
from client_stub.io.daemon_address import control_path, worker_path
from client_stub.system.missing_resources import unreachable_text


def test_a_producer_over_tcp_names_its_keys_and_one_by_a_path_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(KEY_FILE_VARIABLE, raising=False)
    with pytest.raises(ValueError, match="needs this client's keys"):
        Producer("tcp://host:1")
    with pytest.raises(ValueError, match="for a run_dir of the form tcp://host:port only"):
        Producer(tmp_path, curve_key_file=tmp_path / "client.key")
    with pytest.raises(ValueError, match="names no host"):
        Producer("tcp://:1", curve_key_file=tmp_path / "client.key")
    for wrong in ("tcp://host", "tcp://host:x", "tcp://host:0", "tcp://a:b:1"):
        with pytest.raises(ValueError, match="is not tcp://host:port"):
            Producer(wrong, curve_key_file=tmp_path / "client.key")


def test_addresses_keep_what_they_say() -> None:
    for host, port in (("host", 1), ("::1", 65_535), ("127.0.0.1", 9_470)):
        assert split_address(join_address(host, port)) == (host, port)
    assert control_path("tcp://[::1]:9470") == "tcp://[::1]:9470"
    assert worker_path("tcp://host:9470", "tcp://:9471") == "tcp://host:9471"
    assert "No kafka-sidecar daemon answers at tcp://host:1" in unreachable_text("tcp://host:1", 5, "")
