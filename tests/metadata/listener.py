"""An owner of a MetadataFetcher that notes what it hears."""

from __future__ import annotations

from collections.abc import Mapping

from sidecar.common.control import TopicError
from sidecar.metadata.metadata import UpdateResult
from sidecar.metadata.snapshot import MetadataSnapshot


class NotingListener:
    def __init__(self) -> None:
        self.snapshots: list[MetadataSnapshot] = []
        self.errors: list[str] = []
        self.topic_errors: list[Mapping[str, TopicError]] = []
        self.topic_errors_changed = self.topic_errors.append
        self.cluster_error_changed = self.errors.append

    def snapshot_changed(self, result: UpdateResult) -> None:
        self.snapshots.append(result.new)
