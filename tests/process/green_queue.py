"""Celery with a folder as its broker, for test_green_servers.py and its workers."""

from __future__ import annotations

from typing import Any

from celery import Celery


def queue_in(folder: str) -> Any:
    app = Celery("green", broker="filesystem://", backend=f"file://{folder}/results")
    app.conf.broker_transport_options = {
        "data_folder_in": f"{folder}/queue",
        "data_folder_out": f"{folder}/queue",
        "control_folder": f"{folder}/control",
    }
    return app
