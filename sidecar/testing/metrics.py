"""Read a daemon's /metrics as a scraper would."""

from __future__ import annotations

from urllib.request import urlopen

from sidecar.testing.daemon import SidecarDaemon


def metric(daemon: SidecarDaemon, name: str) -> float:
    """Sum of all series called ``name``; 0 while it has none. KeyError for a metric that the daemon does not have.

    OSError when nobody listens.
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
    """Body of a GET; urllib's HTTPError for 4xx and 5xx."""
    with urlopen(f"{http_address(daemon)}{path}", timeout=10) as answer:
        text: str = answer.read().decode()
    return text


def http_address(daemon: SidecarDaemon) -> str:
    """``http://host:port`` as daemon.json tells it."""
    address = str(daemon.info()["http"])
    return (address if "://" in address else f"http://{address}").rstrip("/")
