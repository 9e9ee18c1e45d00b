"""Goal: a list of topics names to nobody what its tables keep from it; the daemon's user and root see all."""

from __future__ import annotations

import asyncio
import os

import pytest

from sidecar.common.errors import Code, Refused
from sidecar.config.client_rules import Caller, ClientRule, ClientRules
from sidecar.controller.front.client_answers import answer_topics

CLUSTER = ["audit", "billing-in", "billing-secret", "orders"]
BILLING = ClientRule("billing", uids=(1001,), allow=("billing-*", "orders"), deny=("*-secret",))
OPEN = ClientRule("web", allow=("audit",))
KEYED = ClientRule("remote", keys=(b"k" * 32,), allow=("orders",))
TABLES = {rule.name: rule for rule in (BILLING, OPEN, KEYED)}
USER, STRANGER = Caller(1001, frozenset({1001})), Caller(1002, frozenset({1002}))
REMOTE = Caller(1 << 62, key=b"k" * 32)


class _Cluster:
    def __init__(self) -> None:
        self.asked: list[list[str] | None] = []

    async def topics(self, names: list[str] | None, max_wait_ms: float | None) -> list[list[object]]:
        self.asked.append(names)
        return [[name, 0, [[0, 1, [1], [1], []]]] for name in (CLUSTER if names is None else names)]


def answer(
    rules: ClientRules, caller: Caller, names: list[str] | None = None, max_wait_ms: float | None = None
) -> list[tuple[object, object]]:
    """Names and codes."""
    cluster = _Cluster()
    rows = asyncio.run(answer_topics(cluster.topics, rules, names, max_wait_ms, caller))
    assert all(
        asked is None or set(asked) <= {row[0] for row in rows if not row[1]} for asked in cluster.asked
    )
    return [(row[0], row[1]) for row in rows]


def names(rows: list[tuple[object, object]]) -> list[object]:
    return [name for name, _ in rows]


def test_a_list_has_what_the_tables_of_the_user_let_it_send_to() -> None:
    for denies_unlisted in (False, True):
        rules = ClientRules(TABLES, denies_unlisted=denies_unlisted)
        assert names(answer(rules, USER)) == ["audit", "billing-in", "orders"], "audit by the open table"
        assert names(answer(rules, REMOTE)) == ["orders"]
        for uid in (0, os.geteuid()):
            assert names(answer(rules, Caller(uid))) == CLUSTER
    assert names(answer(ClientRules(TABLES, denies_unlisted=True), STRANGER)) == ["audit"]
    assert names(answer(ClientRules({"b": BILLING}, denies_unlisted=True), STRANGER)) == []


def test_without_a_table_for_them_users_see_all_as_they_may_send_to_all() -> None:
    assert names(answer(ClientRules(TABLES), STRANGER)) == CLUSTER
    assert names(answer(ClientRules({}), USER)) == CLUSTER


def test_a_user_that_only_a_table_without_topics_names_sees_all() -> None:
    assert names(answer(ClientRules({"b": ClientRule("b", gids=(1001,))}), USER)) == CLUSTER


def test_a_topic_that_is_asked_for_by_name_is_answered_as_a_broker_would_and_kafka_is_not_asked() -> None:
    rules = ClientRules({"billing": BILLING})
    assert answer(rules, USER, ["orders", "billing-secret"]) == [
        ("orders", 0),
        ("billing-secret", Code.TOPIC_AUTHORIZATION_FAILED),
    ]
    assert answer(rules, USER, ["audit", "unheard-of"]) == [
        ("audit", Code.TOPIC_AUTHORIZATION_FAILED),
        ("unheard-of", Code.TOPIC_AUTHORIZATION_FAILED),
    ]


def test_to_wait_for_a_topic_needs_the_right_to_send_to_it() -> None:
    rules = ClientRules({"billing": BILLING}, denies_unlisted=True)
    assert names(answer(rules, USER, ["orders"], 100.0)) == ["orders"]
    with pytest.raises(Refused, match="send to topic audit under no name"):
        answer(rules, USER, ["orders", "audit"], 100.0)
