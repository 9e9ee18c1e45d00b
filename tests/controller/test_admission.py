"""Goal: everything in HELLO is untrusted; each refusal has a code for programs and a sentence for people."""

from __future__ import annotations

from typing import Any

import pytest

from client_stub.contract.wire import (
    CLIENT_ID_BYTES,
    PROTOCOL_VERSION,
    RELATIVE_ENDPOINTS,
    TRANSACTIONAL_ID_BYTES_MAX,
)
from sidecar.common.errors import Refused
from sidecar.config.client_rules import ANY_TOKEN, Caller, ClientRule, ClientRules, digest_of
from sidecar.controller.front.admission import check_hello, takes_relative, transactional_id_of

CLIENT = bytes(range(CLIENT_ID_BYTES))
RULES = ClientRules(
    {
        "billing": ClientRule("billing", tokens=(digest_of("old"), digest_of("s3cret"))),
        "ours": ClientRule("ours", uids=(1001,), gids=(50,)),
        "nobody": ClientRule("nobody", uids=()),
    }
)
CALLER = Caller(1002, frozenset({1002}))


def hello(**changes: Any) -> list[Any]:
    fields = {"version": PROTOCOL_VERSION, "id": CLIENT, "name": "app", "pid": 7, "token": None, **changes}
    return list(fields.values())


def test_admits() -> None:
    assert check_hello(hello(), RULES, CALLER) == (CLIENT, "app", ANY_TOKEN)
    for token in ("s3cret", "old"):
        admitted = check_hello(hello(name="billing", token=token), RULES, CALLER)
        assert admitted == (CLIENT, "billing", digest_of(token))
    for caller in (Caller(1001), Caller(7, frozenset({7, 50}))):
        assert check_hello(hello(name="ours"), RULES, caller)[1] == "ours"


@pytest.mark.parametrize(
    ("fields", "code", "words"),
    [
        ([], "UNSUPPORTED_VERSION", "protocol none"),
        (hello(version=99), "UNSUPPORTED_VERSION", "protocol 99"),
        (hello()[:4], "MALFORMED_FRAME", "4 fields of 5"),
        (hello(id=b"short"), "MALFORMED_FRAME", "client id"),
        (hello(id="x" * 20), "MALFORMED_FRAME", "client id"),
        (hello(name=None), "MALFORMED_FRAME", "client name"),
        (hello(name="n" * 65), "MALFORMED_FRAME", "64 bytes"),
        (hello(pid="7"), "MALFORMED_FRAME", "pid"),
        (hello(name="billing"), "NOT_ADMITTED", "[clients.billing]"),
        (hello(name="billing", token="wrong"), "NOT_ADMITTED", "token"),
        (hello(name="billing", token=5), "NOT_ADMITTED", "token"),
        (hello(name="ours"), "NOT_ADMITTED", 'Client "ours" of uid 1002 is not admitted: [clients.ours]'),
        (hello(name="nobody"), "NOT_ADMITTED", "has other uids and gids"),
    ],
)
def test_refuses(fields: list[Any], code: str, words: str) -> None:
    with pytest.raises(Refused) as refused:
        check_hello(fields, RULES, CALLER)
    assert refused.value.code == code
    assert words in str(refused.value)
    assert "s3cret" not in str(refused.value)


def test_a_name_without_a_table_is_refused_where_that_is_asked_for() -> None:
    strict = ClientRules({"listed": ClientRule("listed")}, denies_unlisted=True)
    assert check_hello(hello(name="listed"), strict, CALLER)[1] == "listed"
    with pytest.raises(Refused, match="unlisted_clients is deny") as refused:
        check_hello(hello(), strict, CALLER)
    assert "uid 1002" in str(refused.value)
    assert not ClientRules({})
    assert strict


@pytest.mark.parametrize(
    ("more", "takes"),
    [
        ([], False),
        ([0], False),
        ([RELATIVE_ENDPOINTS], True),
        ([255, "later"], True),
        (["x"], False),
        ([None], False),
    ],
)
def test_only_a_stub_that_says_so_gets_relative_endpoints(more: list[Any], takes: bool) -> None:
    """Earlier stubs send five fields, and connect to what they are given."""
    assert takes_relative(hello() + more) is takes
    assert check_hello(hello() + more, RULES, CALLER)[:2] == (CLIENT, "app")


def test_a_question_for_a_topic_has_the_rights_that_its_user_has_under_some_name() -> None:
    """To wait for a topic may create it; the question brings no name."""
    rules = {
        "ours": ClientRule("ours", uids=(1001,), allow=("orders",)),
        "theirs": ClientRule("theirs", uids=(1002,), allow=("audit",)),
    }
    strict = ClientRules(rules, denies_unlisted=True)
    assert strict.lookup_refusal("orders", Caller(1001)) is None
    assert "uid 1001 send to topic audit under no name" in str(strict.lookup_refusal("audit", Caller(1001)))
    assert strict.lookup_refusal("orders", Caller(1003)) is not None
    assert ClientRules(rules).lookup_refusal("audit", Caller(1001)) is None, "under an unlisted name it may"
    assert ClientRules({}).lookup_refusal("audit", Caller(1001)) is None


def test_a_transactional_id_is_the_eighth_field() -> None:
    assert transactional_id_of(hello()) is None
    assert transactional_id_of([*hello(), 0, {}]) is None
    assert transactional_id_of([*hello(), 0, {}, None]) is None
    longest = "ü" * (TRANSACTIONAL_ID_BYTES_MAX // 2)
    assert transactional_id_of([*hello(), 0, {}, longest]) == longest


@pytest.mark.parametrize("name", ["", b"bytes", 7, "ü" * (TRANSACTIONAL_ID_BYTES_MAX // 2) + "."])
def test_another_transactional_id_is_refused(name: object) -> None:
    with pytest.raises(Refused, match="1 to 160 bytes") as refused:
        transactional_id_of([*hello(), 0, {}, name])
    assert refused.value.code == "MALFORMED_FRAME"
