"""Goal: with a secret in the configuration no process of the daemon dumps core or shows its memory to its own user."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from sidecar.tools.testing.daemon import SidecarDaemon, StartDaemon
from sidecar.tools.testing.waiting import wait_until

pytestmark = [pytest.mark.process]

WITHOUT_RIGHTS = ["setpriv", "--bounding-set=-all", "--inh-caps=-all"] if os.geteuid() == 0 else []
"""Root may look at everything, so both sides run without its capabilities."""
LOOK = """
import os, sys
for pid in sys.argv[1:]:
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            file.read()
        print("shown")
    except PermissionError:
        print("hidden")
"""


def looked_at(daemon: SidecarDaemon) -> list[str]:
    """The sight that another process of the same user has of the controller and of its worker."""
    daemon.wait_published()
    wait_until(daemon.ready_pids, "the worker", describe=daemon.log_tail)
    pids = map(str, [daemon.info()["pid"], *daemon.worker_pids()])
    words = [*WITHOUT_RIGHTS, sys.executable, "-c", LOOK, *pids]
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout.split()


@pytest.mark.parametrize("with_secret", [False, True])
def test_processes_with_a_secret_hide_their_memory(start_daemon: StartDaemon, with_secret: bool) -> None:
    settings: dict[str, object] = {"daemon.workers": 1}
    if with_secret:
        settings["clients.billing.token"] = "s3cret"
    daemon = start_daemon("127.0.0.1:1", wait=False, settings=settings, prefix=WITHOUT_RIGHTS)
    assert looked_at(daemon) == ["hidden" if with_secret else "shown"] * 2
    # Others still see that it lives, and the next daemon can end it.
    shown = daemon.command("status", "--json")
    assert f'"pid": {daemon.info()["pid"]}' in shown.stdout
    assert daemon.stop() in {0, 1}


def test_a_secret_that_a_reload_brings_hides_them_too(start_daemon: StartDaemon, tmp_path: Path) -> None:
    file = tmp_path / "sidecar.toml"
    file.touch(mode=0o600)
    daemon = start_daemon(
        "127.0.0.1:1", wait=False, config=file, settings={"daemon.workers": 1}, prefix=WITHOUT_RIGHTS
    )
    assert looked_at(daemon) == ["shown", "shown"]
    file.write_text('[clients.billing]\ntoken = "s3cret"\n')
    assert daemon.command("reload").returncode == 0
    assert looked_at(daemon) == ["hidden", "hidden"]
