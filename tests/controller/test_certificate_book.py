"""Goal: whoever renews certificates hears of one in time, and once a day."""

from __future__ import annotations

import pytest

from sidecar.controller.certificate_book import LINE_INTERVAL_S, SOON_S, CertificateBook, Expiry

NOW_S = 1_700_000_000.0
DAY_S = 86_400.0


def test_a_certificate_is_named_two_weeks_ahead_and_once_a_day(caplog: pytest.LogCaptureFixture) -> None:
    book = CertificateBook()
    good, soon = Expiry("The CA's", NOW_S + 5 * SOON_S), Expiry("Our certificate", NOW_S + SOON_S)
    book.tick([good, soon], NOW_S)
    assert not caplog.records
    assert book.notices(NOW_S) == []
    for second in range(int(LINE_INTERVAL_S)):
        if second % 600 == 0:
            book.tick([good, soon], NOW_S + 1 + second)
    assert [line.getMessage().split(":")[0] for line in caplog.records] == [
        "Our certificate expires in 14 days"
    ]
    book.tick([good, soon], NOW_S + 1 + LINE_INTERVAL_S)
    assert len(caplog.records) == 2
    assert [each["certificate"] for each in book.to_list()] == ["The CA's", "Our certificate"]


@pytest.mark.parametrize(
    ("left_s", "words"),
    [(7 * DAY_S, "expires in 7 days"), (36 * 3_600.0, "expires in 36 hours"), (0.0, "has expired: renew it")],
)
def test_the_sentence_says_how_long(left_s: float, words: str) -> None:
    book = CertificateBook()
    book.tick([Expiry("Our certificate", NOW_S + left_s)], NOW_S)
    (notice,) = book.notices(NOW_S)
    assert f"Our certificate {words}" in notice


def test_one_that_was_renewed_is_forgotten(caplog: pytest.LogCaptureFixture) -> None:
    book = CertificateBook()
    book.tick([Expiry("Our certificate", NOW_S + DAY_S)], NOW_S)
    book.tick([Expiry("Our certificate", NOW_S + 365 * DAY_S)], NOW_S + 1)
    assert book.notices(NOW_S + 1) == []
    assert len(caplog.records) == 1
