"""TopicQuestion: asks the daemon why no record can go to a topic now. It asks by a ``TopicLookup``.

The io thread asks when records wait for long, and a caller's thread when its flush() or get() times out.
"""

from __future__ import annotations

from typing import Final

from client_stub.contract.wire import TCP_PREFIX
from client_stub.errors import DaemonUnreachable, MetadataTimeout, SidecarError
from client_stub.io.topic_lookup import TopicLookup
from client_stub.system.originals import monotonic
from client_stub.zmtp.keys import WatchedKeyFile

NOT_IN_METADATA: Final = "topic {} is not in Kafka's metadata yet"
PARTITION_NOT_IN_METADATA: Final = (
    "topic {} has {} partition{}, and partition {} is not in Kafka's metadata yet"
)
ANSWER_MS: Final = 200.0
"""The longest time that an error text waits for the daemon's answer."""
ANSWER_TCP_MS: Final = 1_000.0
"""The same over TCP, which needs a handshake first. The caller has already waited at least as long."""


class TopicQuestion:
    """Asks the daemon why no record can go to a topic now, or to its partition ``partition``. Call ``step`` until it
    returns a text. Not thread-safe.
    """

    def __init__(
        self,
        control_path: str,
        topic: str,
        partition: int,
        now_ms: float,
        curve_keys: WatchedKeyFile | None = None,
    ) -> None:
        self.topic = topic
        self.missing_from = 0
        """The lowest partition to which no record can go now; 0: none can go to the topic."""
        self._partition = partition
        self.lookup = TopicLookup(control_path, topic, 0.0, now_ms, curve_keys)
        self.ends_ms = now_ms + (ANSWER_TCP_MS if control_path.startswith(TCP_PREFIX) else ANSWER_MS)

    def step(self, now_ms: float) -> str | None:
        """The answer; None while there is none. Empty when records can go there, and when the daemon does not answer in
        time.
        """
        said: str | None = None
        try:
            if now_ms >= self.ends_ms:
                said = ""
            elif (found := self.lookup.step(now_ms)) is not None:
                said = ""
                if self._partition >= len(found):
                    self.missing_from = len(found)
                    said = PARTITION_NOT_IN_METADATA.format(
                        self.topic, len(found), "" if len(found) == 1 else "s", self._partition
                    )
        except MetadataTimeout:
            because = self.lookup.cluster_error.rstrip(".")
            said = NOT_IN_METADATA.format(self.topic) + (f": {because}" if because else "")
        except DaemonUnreachable:
            said = ""
        except SidecarError as error:
            said = str(error).rstrip(".")
        if said is not None:
            self.lookup.close()
        return said


def why_no_topic(
    control_path: str, topic: str, partition: int, curve_keys: WatchedKeyFile | None = None
) -> str:
    """The answer of a TopicQuestion, for which it waits."""
    question = TopicQuestion(control_path, topic, partition, monotonic() * 1e3, curve_keys)
    try:
        while (said := question.step(monotonic() * 1e3)) is None:
            question.lookup.wait_for_step(question.ends_ms)
        return said or question.lookup.waits_for
    finally:
        question.lookup.close()
