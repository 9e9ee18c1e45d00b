"""Each missing topic is asked for once, and again after an answer that did not help."""

from __future__ import annotations

from sidecar.worker.topics.missing_topics import MissingTopics


def test_a_topic_is_asked_for_once_and_again_after_an_answer() -> None:
    missing = MissingTopics()
    for _ in range(3):
        missing.add("a")
    missing.add("b")
    assert set(missing.take_unrequested()) == {"a", "b"}
    missing.add("a")
    assert not missing.unrequested, "nothing new: the turn has nothing to compare"
    missing.ask_again(["a", "somebody else's"])
    assert missing.take_unrequested() == ("a",)
    missing.discard("a")
    missing.ask_again(["a"])
    assert not missing.unrequested and missing.names == {"b"}
    missing.add("a")
    assert missing.take_unrequested() == ("a",), "it was gone and is missing again"
