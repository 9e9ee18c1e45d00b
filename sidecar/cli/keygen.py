"""``kafka-sidecar keygen``: makes a CURVE key pair, for a daemon's tcp:// endpoint or for one of its clients."""

from __future__ import annotations

import os
from pathlib import Path

import click

from client_stub.contract.tcp import MISSING_TEXT
from client_stub.zmtp.keys import KeyFileError, key_file_text, parse_key
from sidecar.cli.common import fail


@click.command()
@click.argument("path", type=click.Path(path_type=Path))
@click.option("--server-key", help="Public key of the daemon: the file is for a client of it.")
def keygen(path: Path, server_key: str | None) -> None:
    """Make a key pair for `daemon.listen`: the file PATH, mode 0600, with the secret key; the public key is printed.

    `daemon.curve_key_file` names the daemon's file. A client's public key goes into its `curve.public.keys`.

    \b
    kafka-sidecar keygen /etc/kafka-sidecar/daemon.key         the daemon's
    kafka-sidecar keygen billing.key --server-key PUBLIC_KEY   a client's
    """
    try:
        from client_stub.zmtp.curve import KeyPair
    except ImportError:
        fail(f"{MISSING_TEXT}.")
    try:
        server = parse_key(server_key) if server_key is not None else b""
    except KeyFileError as error:
        fail(f"--server-key {server_key} cannot be used: {error}.")
    keys = KeyPair.new()
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except FileExistsError:
        fail(f"{path} is there already, and a key is never overwritten: name another file.")
    except OSError as error:
        fail(f"{path} cannot be written ({error.strerror}).")
    try:
        with os.fdopen(fd, "w") as file:
            os.fchmod(fd, 0o600)
            file.write(key_file_text(keys.secret, keys.public, server))
    except BaseException as error:
        path.unlink(missing_ok=True)  # otherwise the next try would find a partial key file
        if isinstance(error, OSError):
            fail(f"{path} cannot be written ({error.strerror}).")
        raise
    click.echo(keys.public.hex())
