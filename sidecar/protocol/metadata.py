"""Metadata requests. Sans-IO. (``sidecar.metadata.answer`` reads the responses.)"""

from __future__ import annotations

from collections.abc import Iterable

from sidecar.protocol.messages import ApiKey, RequestMessage, request_module


def metadata_request(
    version: int,
    topics: Iterable[str] | None,
    *,
    allow_auto_topic_creation: bool = True,
    with_topic_rights: bool = False,
) -> RequestMessage:
    """Ask for these topics; None for all topics, an empty list for the brokers only.

    ``with_topic_rights``: also ask for this user's rights on each topic, from version 8 on (KIP-430).
    """
    module = request_module(ApiKey.METADATA, version)
    ids = {"topic_id": None} if version >= 10 else {}
    asked = (
        None if topics is None else tuple(module.MetadataRequestTopic(name=name, **ids) for name in topics)
    )
    options = {"allow_auto_topic_creation": allow_auto_topic_creation}
    if version >= 8:
        options["include_topic_authorized_operations"] = with_topic_rights
    if 8 <= version <= 10:
        options["include_cluster_authorized_operations"] = False
    message: RequestMessage = module.MetadataRequest(topics=asked, **options)
    return message
