"""Goal: who waits for what is one note that names its cause once, comes when it is worth one, and does not flicker."""

from __future__ import annotations

import pytest

from sidecar.common.condition import HoldRow, ShareRow

from .test_condition_book import NOW_MS, Harness


def test_a_full_share_names_topic_and_client(caplog: pytest.LogCaptureFixture) -> None:
    harness = Harness()
    hold = HoldRow("bulk", "share", "orders", NOW_MS - 6_000.0, 1)
    harness.hear(
        0,
        topics=(ShareRow("orders", 0.7, 35, is_full=True),),
        clients=(ShareRow("bulk", 0.4, 20),),
        holds=(hold,),
    )
    harness.hear(1, topics=(ShareRow("orders", 0.2, 10),))
    shown = harness.book.status(48, 5, harness.now_ms)
    assert shown["pool"]["by_topic"] == [{"topic": "orders", "pages": 45, "share_full": True, "share": 0.9}]
    assert shown["pool"]["by_client"] == [{"client": "bulk", "pages": 20, "share_full": False, "share": 0.4}]
    assert shown["holds"] == [
        {
            "client": "bulk",
            "reason": "share",
            "topic": "orders",
            "since_seconds": 6.0,
            "streams": 1,
            "text": "",
        }
    ]
    (notice,) = harness.book.notices(48, harness.now_ms)
    advice = "Look at what keeps the topic from being delivered, send less, or raise buffer.memory."
    assert notice == f"pool 48 %, topic orders at its share, client bulk waits for 6 s. {advice}"
    (line,) = caplog.records
    assert line.getMessage() == (
        "Client bulk waits with records for topic orders for 6 s: topic orders holds its share of the buffer pool. "
        + advice
    )


def test_a_client_at_its_share_is_named_once_for_all_its_topics() -> None:
    harness = Harness()
    holds = [HoldRow("bulk", "share", topic, NOW_MS - 6_000.0, 1) for topic in ("orders", "clicks")]
    holds += [HoldRow(f"deaf{number}", "ring", "", NOW_MS - 5_000.0, 1) for number in range(4)]
    harness.hear(0, clients=(ShareRow("bulk", 1.0, 25, is_full=True),), holds=tuple(holds))
    bulk, deaf = harness.book.notices(25, harness.now_ms)
    assert bulk.startswith(
        "pool 25 %, client bulk at its share, client bulk waits for 6 s. Look at what keeps"
    )
    assert deaf.startswith(
        "clients deaf0, deaf1, deaf2 and 1 more wait for 5 s: they do not read their outcomes. Look at that client"
    )


def test_a_client_at_its_rate_says_nothing_of_the_pool() -> None:
    harness = Harness()
    rate = "topic clicks is at its rate of 1,000 bytes per second"
    harness.hear(0, holds=(HoldRow("web", "rate", "clicks", NOW_MS - 6_000.0, 1, rate),))
    assert harness.book.notices(3, harness.now_ms) == [
        f"client web waits for 6 s: {rate}. "
        "Send less, or raise the rate of the client or topic and run `kafka-sidecar reload`."
    ]


def test_clients_at_rates_of_their_own_are_named_up_to_a_bound() -> None:
    harness = Harness()
    harness.hear(
        0, holds=tuple(HoldRow(f"c{n}", "rate", "t", NOW_MS - 6_000.0, 1, f"rate {n}") for n in range(5))
    )
    *first, last = harness.book.notices(0, harness.now_ms)
    assert [each.split(". ")[0] for each in first] == [
        f"client c{n} waits for 6 s: rate {n}" for n in range(3)
    ]
    assert last == "2 more clients wait for other reasons."


def test_a_note_about_a_held_client_does_not_flicker() -> None:
    """A client at its rate is held for a moment again and again; reports see some of these holds."""
    harness = Harness()

    def noted(is_held: bool, since_ms: float, after_ms: float) -> str:
        harness.now_ms += after_ms
        harness.hear(0, holds=(HoldRow("web", "rate", "clicks", since_ms, 1, "at its rate"),) * is_held)
        return "; ".join(each.partition(":")[0] for each in harness.book.notices(0, harness.now_ms))

    assert noted(True, NOW_MS, 200.0) == "", "a short hold is no news"
    assert noted(True, NOW_MS, 800.0) == "client web waits for 1 s"
    assert noted(False, 0.0, 1_000.0) == "client web waits for 2 s", "it may be held again at once"
    assert noted(True, harness.now_ms + 900.0, 1_000.0) == "client web waits again and again for 3 s"
    assert noted(False, 0.0, 2_900.0) != ""
    assert harness.book.is_eventful
    assert noted(False, 0.0, 100.0) == ""
    assert not harness.book.is_eventful, "it has gone on for BREAK_MS"


def test_short_holds_are_worth_a_note_once_there_are_many() -> None:
    harness = Harness()
    for second in range(6):
        assert harness.book.notices(0, harness.now_ms) == [], second
        harness.hear(
            0,
            after_ms=1_000.0,
            holds=(HoldRow("web", "rate", "clicks", harness.now_ms + 950.0, 1, "its rate"),),
        )
    (notice,) = harness.book.notices(0, harness.now_ms)
    assert notice.startswith("client web waits again and again for 5 s: its rate.")


def test_a_drained_daemon_has_one_line_for_all_its_clients(caplog: pytest.LogCaptureFixture) -> None:
    harness = Harness()
    holds = tuple(HoldRow(f"c{number}", "paused", "orders", NOW_MS - 6_000.0, 1) for number in range(3))
    harness.hear(0, holds=holds)
    harness.tick(1_000.0)
    why = "an operator has drained the daemon. `kafka-sidecar resume` lets clients continue."
    assert caplog.messages == [f"Clients c0, c1 and c2 wait for 6 s: {why}"]
    assert harness.book.notices(0, harness.now_ms) == [f"clients c0, c1 and c2 wait for 7 s: {why}"]
