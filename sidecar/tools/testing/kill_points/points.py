"""The table of kill points: for each one, the state that a worker leaves if it is killed there."""

from __future__ import annotations

from typing import Final

# Points inside the kernel, numbered as in ``sidecar/kernel/store_hook.pxi``: each is right after the store.
KERNEL_POINTS: Final = (
    "accept.page_header",
    "accept.page_linked",
    "accept.entry_header",
    "accept.entry_words",
    "accept.entry_payload",
    "accept.page_entry",
    "accept.tail",
    "index.word",
    "fail.word",
    "words.word",
    "pages.taken",
    "pages.given",
)

POINTS: Final[dict[str, str]] = {
    # A client comes and goes.
    "client.taking": "a row is taken, nothing is in it",
    "client.row": "the row is written, not yet live",
    "client.live": "the row is live, its client does not know it",
    "client.released": "the row of a client that is gone is free",
    "stream.placed": "a stream has its place in the row, no record of it is accepted",
    "stream.position_moved": "the place of an ended stream has the position of the last one",
    "stream.moved": "it has its word as well: the last stream is there twice",
    "stream.ended": "the last place is empty",
    # Accept.
    "pages.taken": "one page is taken from the pool, not yet linked",
    "accept.page_header": "the page's header is written",
    "accept.page_linked": "the page is linked, beyond the tail",
    "accept.entry_header": "plain writes of the entry: its header",
    "accept.entry_words": "its words",
    "accept.entry_payload": "its payload",
    "accept.page_entry": "the page names its first entry",
    "accept.tail": "fact 1: the tail is stored, the row's position is not",
    "accept.position": "the row's position is stored, the counters are not",
    "accept.counted": "accepted and counted, not yet indexed",
    # Index.
    "index.begin": "before the walk over an entry",
    "index.word": "one record has its partition, the next has not",
    "index.batched": "the walk is over, the records are in open batches",
    "fail.word": "one record has its failure word, its client has no outcome",
    # Publish, encode, send.
    "publish.content": "plain writes of a descriptor",
    "publish.state": "fact 2: published, nothing encoded",
    "encode.begin": "before a batch is encoded",
    "encode.batch": "one batch of a request is encoded",
    "encode.compressed": "all batches of a request are compressed",
    "send.begin": "the request is handed to the socket's queue, no byte has gone",
    "send.part": "the kernel has taken a part of a request",
    "send.all": "the kernel has taken all of a request",
    "answer.read": "an answer is read, nothing is done about it",
    # Done, tell, words, descriptor.
    "done.content": "plain writes of a result",
    "done.state": "fact 3: settled, not counted",
    "done.counted": "settled and counted, no client has an outcome",
    "tell.entry": "an outcome is in the ring, the ring's head is not moved",
    "tell.head": "the ring's head is moved",
    "released.state": "the descriptor is released, no word is done",
    "words.word": "one word is done, the next is not",
    "words.done": "all words of the batch are done",
    "free.state": "the descriptor is free",
    "pages.released": "finished pages have left their chain, none is free",
    "pages.given": "one page is free",
    "ack.number": "the number of an ACK is stored, the ring's tail is not",
    "ack.read": "the ring's tail is stored",
    # Identity.
    "producer.stored": "a producer id has come and is stored in the slot",
    "renumber.freed": "one of several batches that lose their identity has lost its descriptor",
    "split.pending": "one half of a batch that was too large is published, pending on the whole",
    "split.switched": "the halves stand in the whole's place, none is live",
    "split.raised": "one half is live",
    # Transactions.
    "lane.named": "a lane has its id, its row is not in use",
    "lane.content": "plain writes of a lane's record",
    "lane.stored": "a lane's record is stored, and nothing that it allows is done",
    "lane.freed": "the row of a lane that has ended is free",
    "init.stored": "a lane that asks for its producer id is stored, its InitProducerId is not sent",
    "init.sent": "InitProducerId of a lane is handed to the socket's queue",
    "init.answered": "its answer is read, nothing is done about it",
    "end.stored": "a lane that ends its transaction is stored, its EndTxn is not sent",
    "end.sent": "EndTxn is handed to the socket's queue",
    "end.answered": "its answer is read, nothing is done about it",
    "txn.result": "what a client asked of its transaction is stored, nobody has told it",
    "txn.told": "a message about its transaction is in the client's socket",
    # Stages.
    "stage.number": "a number is taken, no row has it",
    "stage.fields": "plain writes of a stage's row",
    "stage.opened": "a stage is open, no record is in it",
    "stage.position": "a submission of a stage is in the journal, the counters do not have it",
    "stage.sealing": "plain writes of a seal",
    "stage.sealed": "a stage is sealed, its client has no token",
    "stage.included": "the row of one stage says who includes it, the next does not",
    "stage.include_stored": "an include is a fact, nothing is sent",
    "stage.dropped": "a stage is dropped, its records have not ended",
    "stage.ended": "nothing of a stage is left",
    # Adoption, in its order.
    "adopt.begin": "the slot's byte is taken, nothing is touched",
    "adopt.page": "one page has the new incarnation",
    "adopt.pages": "all pages are taken over",
    "adopt.slot": "plain writes of the slot's header",
    "adopt.claimed": "the slot has the new incarnation",
    "adopt.half_taken": "half-taken rows are released",
    "adopt.chains": "the chains are read",
    "adopt.clients": "rows are sessions, positions are stored",
    "adopt.ranges": "descriptors are read",
    "adopt.indexed": "every chain is walked",
    "adopt.balanced": "the counters balance",
    "adopt.released": "acked batches have ended, stored outcomes and failures are written again",
    "adopt.sent": "what was sent and not answered waits for its broker",
    "adopt.pages_back": "the pages of one chain have gone back",
    "adopt.end": "the adoption is over",
    "inquiry.asked": "a leader is asked what it has",
    "inquiry.answered": "its answer is there, nothing is sent again yet",
}
"""Point → the state in the segment when a worker is killed there."""

assert set(KERNEL_POINTS) <= POINTS.keys()
