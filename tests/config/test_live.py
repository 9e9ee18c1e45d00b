"""Differences of two configurations: which are live, which need another daemon, and no secret in any text."""

from __future__ import annotations

from dataclasses import replace
from fnmatch import fnmatchcase

from hypothesis import given
from hypothesis import strategies as st

from sidecar.config.live import LIVE, SETTLED_TOPIC_KEYS, difference
from sidecar.config.loader import load_config
from sidecar.config.setting import Value
from sidecar.config.settings import BY_NAME, SidecarConfig

SERVERS = "bootstrap.servers=localhost:9092"
Tables = dict[str, dict[str, Value]]


def config(*words: str) -> SidecarConfig:
    return load_config(None, [SERVERS, *words], {})


def test_every_live_name_is_a_setting() -> None:
    assert LIVE - BY_NAME.keys() == set()


def test_live_ones_are_changes_and_others_are_refused_by_name() -> None:
    found = difference(config(), config("linger.ms=7", "daemon.workers=4", "http.listen="))
    assert found.changes == ("linger.ms 5 → 7",)
    assert found.refusals == (
        "daemon.workers 2 → 4 needs a restart: kafka-sidecar run --takeover.",
        'http.listen 127.0.0.1:9464 → "" needs a restart: kafka-sidecar run --takeover.',
    )


def test_sizes_of_the_segment_need_a_clean_stop_as_a_takeover_keeps_them() -> None:
    changed = config(
        "buffer.memory=64MB", "pool.page_bytes=32768", "daemon.clients_max=2048", "pool.path=/tmp/p"
    )
    assert difference(config(), changed).refusals == (
        "buffer.memory 134217728 → 67108864 needs a clean stop: kafka-sidecar drain, then restart the daemon.",
        "daemon.clients_max 1024 → 2048 needs a clean stop: kafka-sidecar drain, then restart the daemon.",
        'pool.path "" → /tmp/p needs a clean stop: kafka-sidecar drain, then restart the daemon.',
        "pool.page_bytes 16384 → 32768 needs a clean stop: kafka-sidecar drain, then restart the daemon.",
    )


def test_a_concluded_value_counts() -> None:
    """request.timeout.ms raises a default: both differ, and the cause is named as the one that needs a restart."""
    found = difference(config(), config("request.timeout.ms=200000"))
    assert found.changes == ("delivery.timeout.ms 120000 → 200005",)
    assert len(found.refusals) == 1


def test_no_secret_is_shown() -> None:
    old = config("clients.a.token=sesame")
    found = difference(old, config("clients.a.token=open", "clients.b.token=secret"))
    assert found.changes == ('clients."b" added', 'clients."a".token *** → ***')


def test_tables_of_topics() -> None:
    old = config("topics.a.linger.ms=1", "topics.b.rate=10")
    new = config("topics.a.linger.ms=2", "topics.c.rate=1")
    assert difference(old, new).changes == (
        'topics."c" added',
        'topics."b" removed',
        'topics."a".linger.ms 1 → 2',
    )
    assert difference(old, new).refusals == ()


def test_a_table_before_one_with_acks_is_refused_and_one_after_it_is_live() -> None:
    old = config()
    first: Tables = {"a*": {"rate": 1}}
    settled: Tables = {"ab": {"acks": 1}}
    last: Tables = {"*": {"rate": 2}}
    before = replace(old, topics=settled)
    assert difference(before, replace(old, topics={**settled, **last})).refusals == ()
    (refusal,) = difference(before, replace(old, topics={**first, **settled})).refusals
    assert refusal.startswith('acks or partitioner of the topics of topics."a*" needs a restart')


patterns = st.sampled_from(["a", "ab", "b", "a*", "*b", "*"])
keys = st.fixed_dictionaries(
    {}, optional={"acks": st.sampled_from([1, -1]), "rate": st.just(1), "partitioner": st.just("random")}
)
tables = st.lists(st.tuples(patterns, keys), max_size=4).map(dict)


def settled_of(topic: str, topics: Tables) -> list[Value]:
    own = next((own for pattern, own in topics.items() if fnmatchcase(topic, pattern)), {})
    return [own.get(key) for key in SETTLED_TOPIC_KEYS]


@given(tables, tables)
def test_a_permitted_reload_keeps_acks_and_partitioner_of_each_topic(old: Tables, new: Tables) -> None:
    plain = config()
    if not difference(replace(plain, topics=old), replace(plain, topics=new)).refusals:
        for topic in ("a", "ab", "b", "xb", "ax", "c"):
            assert settled_of(topic, old) == settled_of(topic, new)
