"""Goal: whoever renews certificates hears of one in time, and once a day."""

from __future__ import annotations

import pytest

from sidecar.controller.status.certificate_book import LINE_INTERVAL_S, SOON_S, CertificateBook, Expiry

NOW_S = 1_700_000_000.0
DAY_S = 86_400.0


def test_a_certificate_is_named_two_weeks_ahead_and_once_a_day(caplog: pytest.LogCaptureFixture) -> None:
    book = CertificateBook()
    good, soon = Expiry("The CA's", NOW_S + 5 * SOON_S), Expiry("Our certificate", NOW_S + SOON_S)
    book.tick([good, soon], NOW_S)
    assert not caplog.records
    assert notices(book, NOW_S) == []
    for second in range(int(LINE_INTERVAL_S)):
        if second % 600 == 0:
            book.tick([good, soon], NOW_S + 1 + second)
    assert [line.getMessage().split(":")[0] for line in caplog.records] == [
        "Our certificate expires in 14 days"
    ]
    book.tick([good, soon], NOW_S + 1 + LINE_INTERVAL_S)
    assert len(caplog.records) == 2
    assert [each["certificate"] for each in book.to_list()] == ["The CA's", "Our certificate"]


def notices(book: CertificateBook, wall_s: float) -> list[str]:
    return [*book.notices(wall_s, have_ended=True), *book.notices(wall_s, have_ended=False)]


@pytest.mark.parametrize(
    ("left_s", "words"),
    [
        (7 * DAY_S, "expires in 7 days"),
        (36 * 3_600.0, "expires in 36 hours"),
        (61.0, "expires in 2 minutes"),
        (0.0, "has expired: renew it"),
    ],
)
def test_the_sentence_says_how_long(left_s: float, words: str) -> None:
    book = CertificateBook()
    book.tick([Expiry("Our certificate", NOW_S + left_s)], NOW_S)
    (notice,) = notices(book, NOW_S)
    assert f"Our certificate {words}" in notice


def test_its_end_is_logged_when_it_comes_and_noted_before_all_else(caplog: pytest.LogCaptureFixture) -> None:
    """The next line was a day after the last warning, while each new connection was refused."""
    book = CertificateBook()
    ours = [Expiry("Our certificate", NOW_S + 90.0), Expiry("The CA's", NOW_S + DAY_S)]
    assert book.tick(ours, NOW_S)
    assert not book.tick(ours, NOW_S + 60.0)
    assert book.tick(ours, NOW_S + 90.0)
    assert not book.tick(ours, NOW_S + 3_600.0)
    assert [line.split(":")[0] for line in caplog.messages] == [
        "Our certificate expires in 2 minutes",
        "The CA's expires in 24 hours",
        "Our certificate has expired",
    ]
    (ended,) = book.notices(NOW_S + 100.0, have_ended=True)
    assert ended.startswith("Our certificate has expired: renew it.")
    (near,) = book.notices(NOW_S + 100.0, have_ended=False)
    assert near.startswith("The CA's expires in 24 hours")


def test_one_that_was_renewed_is_forgotten(caplog: pytest.LogCaptureFixture) -> None:
    book = CertificateBook()
    book.tick([Expiry("Our certificate", NOW_S + DAY_S)], NOW_S)
    book.tick([Expiry("Our certificate", NOW_S + 365 * DAY_S)], NOW_S + 1)
    assert notices(book, NOW_S + 1) == []
    assert len(caplog.records) == 1
