"""Flows: how much each topic and client sends, read from the segment of a daemon, even of one that hangs.

The exporter calls it on the controller's loop; `top` and `explain` in their own processes.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from math import inf
from typing import Any, Final

from sidecar.shm import layout
from sidecar.shm.chain_table import ChainTable
from sidecar.shm.client_table import ROW_LIVE
from sidecar.shm.segment import Segment

SHOWN_MAX: Final = 200
"""How many topics and how many clients are shown: the busiest ones, with the count of all."""
TOPICS_OF_CLIENT_MAX: Final = 8
"""How many topics of one client are named."""
_STREAM: Final = struct.Struct("<IIQ")


class Flows:
    """Rates are computed between two calls of ``look``, so keep this object while watching. Not thread-safe; only
    reads.
    """

    def __init__(self, segment: Segment, stale_s: float = inf) -> None:
        """``stale_s``: after a longer pause the next call gives no rates, which would be means over the pause."""
        self._segment = segment
        self._stale_s = stale_s
        self._tables: dict[int, _ChainWords] = {}
        self._seconds = 0.0
        self._topic_bytes: dict[str, int] = {}
        self._client_submissions: dict[tuple[int, int], int] = {}

    def sample(self, now_s: float) -> dict[str, Any]:
        """``topics`` and ``clients``, the busiest first, with rates since the last call; the first call gives none.

        A topic's bytes are those of its journal: with the headers of submissions, before compression. ``now_s`` is
        monotonic.
        """
        elapsed_s = now_s - self._seconds if self._seconds else 0.0
        if elapsed_s > self._stale_s:
            elapsed_s = 0.0
        self._seconds = now_s
        topics, names = self._topics()
        clients = self._clients(names)
        topic_bytes = {topic: each["journal_bytes"] for topic, each in topics.items()}
        submissions = {key: each["submissions"] for key, each in clients.items()}
        if elapsed_s > 0:
            for topic, each in topics.items():
                more = each["journal_bytes"] - self._topic_bytes.get(topic, 0)
                each["bytes_per_second"] = round(max(more, 0) / elapsed_s, 1)
            for key, each in clients.items():
                more = each["submissions"] - self._client_submissions.get(key, 0)
                each["submissions_per_second"] = round(max(more, 0) / elapsed_s, 1)
        self._topic_bytes, self._client_submissions = topic_bytes, submissions
        for each in clients.values():
            for topic in each["topics"]:
                topics[topic]["clients"] += 1
            each["topic_count"] = len(each["topics"])
            each["topics"] = each["topics"][:TOPICS_OF_CLIENT_MAX]
        return {
            "topics": _busiest(topics.values(), "bytes_per_second", "journal_bytes"),
            "topic_count": len(topics),
            "clients": _busiest(clients.values(), "submissions_per_second", "submissions"),
            "client_count": len(clients),
        }

    def _topics(self) -> tuple[dict[str, dict[str, Any]], dict[tuple[int, int], str]]:
        """(facts by topic, the topic of each (slot, chain))."""
        topics: dict[str, dict[str, Any]] = {}
        names: dict[tuple[int, int], str] = {}
        for slot in self._segment.prepared_slots():
            table = self._tables.get(slot)
            if table is None:
                table = self._tables[slot] = _ChainWords(self._segment, slot)
            for chain_id, topic, tail, held in table.read():
                facts = topics.get(topic)
                if facts is None:
                    facts = topics[topic] = {
                        "topic": topic,
                        "journal_bytes": 0,
                        "held_bytes": 0,
                        "clients": 0,
                    }
                facts["journal_bytes"] += tail
                facts["held_bytes"] += held
                names[slot, chain_id] = topic
        return topics, names

    def _clients(self, names: dict[tuple[int, int], str]) -> dict[tuple[int, int], dict[str, Any]]:
        """(row, generation) → the facts of a client."""
        found: dict[tuple[int, int], dict[str, Any]] = {}
        for index, generation, slot in self._live_rows():
            start = self._segment.layout.client(index)
            row = self._segment.view[start : start + layout.RING_OFFSET]
            _, _, _, pid, _, name_bytes, name = layout.CLIENT_ROW.unpack_from(row)
            submissions, topics = 0, dict[str, None]()
            streams_end = layout.STREAMS_OFFSET + layout.STREAMS_MAX * layout.STREAM_BYTES
            for _, chain, position in _STREAM.iter_unpack(row[layout.STREAMS_OFFSET : streams_end]):
                if not chain:
                    break
                submissions += position
                topic = names.get((slot, chain - 1))
                if topic is not None:
                    topics[topic] = None
            found[index, generation] = {
                "client": name[:name_bytes].decode("utf-8", "replace"),
                "pid": pid,
                "slot": slot,
                "submissions": submissions,
                "topics": list(topics),
            }
        return found

    def _live_rows(self) -> Iterator[tuple[int, int, int]]:
        """(row, generation, slot) of each live row; rows of another state cost no Python."""
        layout = self._segment.layout
        words = bytes(self._segment.view[layout.client_words :][: 8 * layout.clients_max])
        states = words[::8]
        index = states.find(ROW_LIVE)
        while index >= 0:
            (word,) = struct.unpack_from("<Q", words, 8 * index)
            yield index, word >> 32, word >> 8 & 0xFF
            index = states.find(ROW_LIVE, index + 1)


class _ChainWords:
    """The chain table of a slot. Names are read again only when one has changed, as a thousand names cost
    milliseconds.
    """

    def __init__(self, segment: Segment, slot: int) -> None:
        self._segment, self._slot = segment, slot
        self._area = segment.slot(slot).area
        words = self._area[layout.CHAINS_OFFSET :][: layout.CHAINS_MAX * layout.CHAIN_ROW_BYTES].cast("Q")
        self._tails = words[:: layout.CHAIN_ROW_BYTES // 8]
        self._held = words[layout.CHAIN_HELD_OFFSET // 8 :: layout.CHAIN_ROW_BYTES // 8]
        self._number = -1
        self._names: list[tuple[int, str]] = []

    def read(self) -> Iterator[tuple[int, str, int, int]]:
        """(chain, topic, tail, bytes held in the pool) of each chain with a name."""
        (number,) = struct.unpack_from("<Q", self._area, layout.CHAIN_NAMES_OFFSET)
        if number != self._number:
            table = ChainTable(self._segment, self._slot)
            self._names = [(chain.chain_id, chain.topic) for chain in table.names()]
            self._number = number
        tails, held = self._tails.tolist(), self._held.tolist()
        for chain_id, topic in self._names:
            yield chain_id, topic, tails[chain_id], held[chain_id]


def _busiest(found: Any, rate: str, total: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = sorted(
        found, key=lambda each: (each.get(rate, 0.0), each[total]), reverse=True
    )
    return rows[:SHOWN_MAX]
