"""Read a daemon's /metrics over HTTP."""

from __future__ import annotations

from urllib.request import urlopen

from sidecar.tools.testing.daemon import SidecarDaemon


def metric(daemon: SidecarDaemon, name: str) -> float:
    """Return the sum of all series called ``name``; 0 while there is none.

    Raises KeyError for a metric that the daemon does not have, OSError when it does not listen.
    """
    page = http_get(daemon, "/metrics")
    if f"# TYPE {name} " not in page:
        raise KeyError(f"/metrics has no {name}")
    total = 0.0
    for line in page.splitlines():
        if line.startswith((f"{name} ", f"{name}{{")):
            total += float(line.rpartition(" ")[2])
    return total


def http_get(daemon: SidecarDaemon, path: str) -> str:
    """Return the body of a GET. Raises urllib's HTTPError for 4xx and 5xx."""
    with urlopen(f"{http_address(daemon)}{path}", timeout=10) as answer:
        text: str = answer.read().decode()
    return text


def http_address(daemon: SidecarDaemon) -> str:
    """Return ``http://host:port`` from daemon.json."""
    address = str(daemon.info()["http"])
    return (address if "://" in address else f"http://{address}").rstrip("/")
