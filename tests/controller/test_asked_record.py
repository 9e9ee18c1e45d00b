"""Goal: the question for a key's last record is refused in one sentence unless it is whole and its sender may ask."""

from __future__ import annotations

from typing import Any

import pytest

from client_stub.contract.wire import KEY_BYTES_MAX
from client_stub.testing import FakeProducer
from sidecar.common.errors import Refused
from sidecar.config.client_rules import Caller, ClientRule, ClientRules, digest_of
from sidecar.controller.front.asked_record import asked_record, check_sender

WHOLE: list[Any] = ["commits", b"key", "app", None, 5.0, True]


def changed(place: int, value: Any) -> list[Any]:
    return [*WHOLE[:place], value, *WHOLE[place + 1 :]]


def test_a_key_has_its_bounds() -> None:
    assert asked_record(changed(1, b"k" * KEY_BYTES_MAX)).key == b"k" * KEY_BYTES_MAX
    with FakeProducer() as producer:
        producer.last_committed("commits", b"k" * KEY_BYTES_MAX)
        for key in (b"", b"k" * (KEY_BYTES_MAX + 1)):
            with pytest.raises(ValueError, match=f"1 to {KEY_BYTES_MAX} bytes, not {len(key)}"):
                producer.last_committed("commits", key)
        with pytest.raises(TypeError, match="key must be bytes, not str"):
            producer.last_committed("commits", "key")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "fields",
    [
        [],
        WHOLE[:5],
        *(changed(0, each) for each in (None, "", "t" * 250, b"commits")),
        *(changed(1, each) for each in (None, b"", "key", b"k" * (KEY_BYTES_MAX + 1))),
        *(changed(2, each) for each in (None, "n" * 65, b"app")),
        *(changed(4, each) for each in (None, -1.0, True, "5", float("nan"))),
        *(changed(5, each) for each in (None, 1)),
    ],
)
def test_malformed_question_is_refused(fields: list[Any]) -> None:
    with pytest.raises(Refused, match="LAST_RECORD") as refused:
        asked_record(fields)
    assert refused.value.code == "MALFORMED_FRAME"


def test_who_may_not_send_to_a_topic_may_not_read_it() -> None:
    rules = ClientRules(
        {"app": ClientRule("app", tokens=(digest_of("secret"),), allow=("commits",))}, denies_unlisted=True
    )
    caller = Caller(1000)
    check_sender(rules, asked_record(changed(3, "secret")), caller)
    for fields, code in (
        (WHOLE, "NOT_ADMITTED"),
        (changed(3, "wrong"), "NOT_ADMITTED"),
        (changed(2, "other"), "NOT_ADMITTED"),
        ([*changed(3, "secret")[:0], "orders", *changed(3, "secret")[1:]], "TOPIC_AUTHORIZATION_FAILED"),
    ):
        with pytest.raises(Refused) as refused:
            check_sender(rules, asked_record(fields), caller)
        assert refused.value.code == code


def test_a_fake_knows_what_was_committed() -> None:
    with FakeProducer(transactional_id="t") as producer:
        producer.init_transactions()
        with producer.transaction():
            producer.send("commits", b"1", b"key")
        producer.begin_transaction()
        producer.send("commits", b"2", b"key")
        producer.abort_transaction()
        found = producer.last_committed("commits", b"key").record
        assert found is not None and found.value == b"1"
        assert producer.last_committed("commits", b"other").record is None
