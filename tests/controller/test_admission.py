"""Goal: everything in HELLO is untrusted; each refusal has a code for programs and a sentence for people."""

from __future__ import annotations

from typing import Any

import pytest

from client_stub.wire import CLIENT_ID_BYTES, PROTOCOL_VERSION, RELATIVE_ENDPOINTS
from sidecar.common.errors import Refused
from sidecar.controller.admission import check_hello, takes_relative

CLIENT = bytes(range(CLIENT_ID_BYTES))
CLIENTS = {"billing": {"token": "s3cret"}}


def hello(**changes: Any) -> list[Any]:
    fields = {"version": PROTOCOL_VERSION, "id": CLIENT, "name": "app", "pid": 7, "token": None, **changes}
    return list(fields.values())


def test_admits() -> None:
    assert check_hello(hello(), CLIENTS) == (CLIENT, "app")
    assert check_hello(hello(name="billing", token="s3cret"), CLIENTS) == (CLIENT, "billing")


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
    ],
)
def test_refuses(fields: list[Any], code: str, words: str) -> None:
    with pytest.raises(Refused) as refused:
        check_hello(fields, CLIENTS)
    assert refused.value.code == code
    assert words in str(refused.value)
    assert "s3cret" not in str(refused.value)


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
    assert check_hello(hello() + more, CLIENTS) == (CLIENT, "app")
