"""CreateTopics and DescribeConfigs of one topic. Sans-IO."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from sidecar.common.errors import Code
from sidecar.protocol.messages import ApiKey, RequestMessage, request_module

CLEANUP_POLICY: Final = "cleanup.policy"
_TOPIC: Final = 2
"""The type of the resource."""


def create_topic_request(
    version: int, topic: str, partitions: int, replicas: int, settings: Mapping[str, str]
) -> RequestMessage:
    module = request_module(ApiKey.CREATE_TOPICS, version)
    wanted = module.CreatableTopic(
        name=topic,
        num_partitions=partitions,
        replication_factor=replicas,
        assignments=(),
        configs=tuple(
            module.CreatableTopicConfig(name=name, value=value) for name, value in settings.items()
        ),
    )
    message: RequestMessage = module.CreateTopicsRequest(topics=(wanted,))
    return message


def parse_create_topic(entity: Any) -> tuple[int, str]:
    """(error code, the broker's text)."""
    (each,) = entity.topics
    return int(each.error_code), str(each.error_message or "")


def cleanup_policy_request(version: int, topic: str) -> RequestMessage:
    module = request_module(ApiKey.DESCRIBE_CONFIGS, version)
    wanted = module.DescribeConfigsResource(
        resource_type=_TOPIC, resource_name=topic, configuration_keys=(CLEANUP_POLICY,)
    )
    message: RequestMessage = module.DescribeConfigsRequest(resources=(wanted,))
    return message


def parse_cleanup_policy(entity: Any) -> tuple[int, str]:
    """(error code, the policy)."""
    (each,) = entity.results
    values = [str(row.value) for row in each.configs if row.name == CLEANUP_POLICY]
    code = int(each.error_code)
    if not code and not values:
        return int(Code.UNKNOWN_SERVER_ERROR), ""
    return code, values[0] if values else ""
