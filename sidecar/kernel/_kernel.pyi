"""Types of the compiled kernel. Its twin in plain Python, the tests' oracle, has the same API.

Nothing here is thread-safe unless it says so: every object belongs to one worker's loop. Long walks release the GIL,
so that other threads of the process can run.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Final, final

from _typeshed import ReadableBuffer, WriteableBuffer
from typing_extensions import disjoint_base

ENTRY_HEADER_BYTES: Final = 64
PAGE_HEADER_BYTES: Final = 64
BATCH_HEADER_BYTES: Final = 61
RECORDS_PER_ENTRY_MAX: Final = 65_535
PAGE_TAKEN: Final = 1
PAGE_LINKED: Final = 2
PARTITIONERS: Final[tuple[str, ...]]
ENTRY_INDEX_BYTES: int
RECORD_INDEX_BYTES: int

@final
class Chain:
    """One journal chain: a logical byte stream over pages, to which its one owner appends.

    ``pages`` is the page area of the segment, ``owners`` its owner words (u64 each), ``tail_word`` the chain's 8-byte
    tail. A new Chain whose tail is not 0 continues at the next page after the tail. To read existing entries, use
    :meth:`recover`.
    """

    def __init__(
        self,
        pages: WriteableBuffer,
        page_bytes: int,
        slot: int,
        chain_id: int,
        tail_word: WriteableBuffer,
        *,
        incarnation: int,
        owners: WriteableBuffer,
    ) -> None: ...
    @property
    def slot(self) -> int: ...
    @property
    def chain_id(self) -> int: ...
    @property
    def incarnation(self) -> int: ...
    @property
    def tail(self) -> int:
        """Logical byte position after the last accepted entry."""
    @property
    def next_ordinal(self) -> int: ...
    @property
    def live_entries(self) -> int:
        """Number of accepted entries with a record whose word is not done."""
    @property
    def live_records(self) -> int: ...
    @property
    def page_count(self) -> int:
        """Number of pages linked to the chain."""
    @property
    def damage(self) -> list[str]:
        """Descriptions of damage found by recovery, one sentence each; empty for an intact chain."""
    def pages_needed(self, count: int, payload_bytes: int) -> int:
        """Number of pages to link before an entry of ``count`` records and ``payload_bytes`` fits."""
    def link_pages(self, page_indexes: Sequence[int]) -> None:
        """Add taken pages at the end: write their headers, then mark their owner words as linked."""
    def append(
        self,
        payload: ReadableBuffer,
        *,
        count: int,
        client_row: int,
        client_generation: int,
        stream: int,
        seq: int,
        base_timestamp_ms: int,
        format: int,
        flags: int,
        txn_number: int = 0,
        accepted_ms: float = -1.0,
    ) -> Entry:
        """Copy one submission into the pages, and accept it by one release store of the tail.

        ``accepted_ms`` is the slot's clock, stored to the second; negative: not known.

        Raises ValueError, with nothing changed, for a count of 0, above 65,535 or above the payload's bytes. It does
        so, too, for a format other than msgpack (see :func:`records_from_columns`), and without the pages counted by
        :meth:`pages_needed`.
        """
    def release_pages(self) -> list[int]:
        """Remove and return the pages entirely below the tail whose entries are all finished, including ones in the
        middle.

        The caller gives them to the BufferPool, which stores the owner words.
        """
    def release_idle(self) -> list[int]:
        """As release_pages. If nothing is live, also the partly filled last page and unused linked pages."""
    @classmethod
    def recover(
        cls,
        pages: WriteableBuffer,
        page_bytes: int,
        slot: int,
        chain_id: int,
        tail_word: WriteableBuffer,
        *,
        incarnation: int,
        owners: WriteableBuffer,
        page_indexes: Sequence[int] | None = None,
    ) -> Chain:
        """Rebuild a chain from page headers and tail. Changes nothing. ``page_indexes`` saves the scan of all pages."""
    def entries(self, first: int = 0, stop: int | None = None) -> Iterator[Entry]:
        """Yield live entries with ordinals in [``first``, ``stop``), in order. Each is built when it is reached.

        For a recovered chain: the entries with a record that is not done.
        """
    def ordinals(self, first: int, limit: int) -> bytes:
        """Ordinals of up to ``limit`` live entries from ``first`` on, 8 bytes each in native order."""
    def entry(self, ordinal: int) -> Entry:
        """The live entry with this ordinal. Raises ValueError if it has ended."""
    def log_file(self, ordinal: int) -> int:
        """Number of the accept log's file that holds an entry; 0 if none does."""
    def set_log_file(self, ordinal: int, number: int) -> None: ...
    def held_between(self, first: int, stop: int | None) -> tuple[int, int]:
        """(records not done, payload bytes) of live entries with ordinals in [``first``, ``stop``); ``stop`` None: to
        the end.
        """
    def streams(self) -> list[tuple[int, int, int, int, int, int]]:
        """(client row, generation, stream, last seq, records not done, their share of :func:`held_bytes`) of each
        stream with a live entry here.
        """
    def take_finished(self) -> list[tuple[int, int, int]]:
        """Remove and return (ordinal, log file, payload bytes) of logged entries that ended since the last call."""

@final
class Entry:
    """One accepted submission in a chain, read from its header. Made by Chain only, when it is asked for; the chain
    keeps two bytes per entry.
    """

    @property
    def chain(self) -> Chain: ...
    @property
    def chain_id(self) -> int: ...
    @property
    def ordinal(self) -> int: ...
    @property
    def position(self) -> int: ...
    @property
    def count(self) -> int: ...
    @property
    def seq(self) -> int: ...
    @property
    def stream(self) -> int: ...
    @property
    def client_row(self) -> int: ...
    @property
    def client_generation(self) -> int: ...
    @property
    def base_timestamp_ms(self) -> int: ...
    @property
    def payload_bytes(self) -> int: ...
    @property
    def format(self) -> int: ...
    @property
    def flags(self) -> int: ...
    @property
    def txn_number(self) -> int: ...
    @property
    def accepted(self) -> int:
        """The second of the slot's clock at which it was accepted, modulo 65,535, plus 1; 0 if not known."""
    @property
    def remaining(self) -> int:
        """Number of records whose word is not done at present."""

@final
class StickyPartitioner:
    """Chooses the partitions of one topic's records. ``kind`` is one of PARTITIONERS:

    - ``murmur2``: Kafka's default. Keys by murmur2 (an empty key is a key); keyless records by the uniform sticky
      choice of KIP-794 (Kafka's BuiltInPartitioner), as all records with ``ignore_keys``.
    - ``consistent_random``: librdkafka's default. Keys by CRC-32; null and empty keys by chance.
    - ``fnv1a``: librdkafka's. FNV-1a made positive; a null key counts as an empty one. ``fnv1a_random``: null keys
      by chance.
    - ``random``, ``round_robin``: whatever the key, among ``available``.

    The sticky partition is kept until ``sticky_batch_bytes`` went to it. The record after that draws the next one from
    ``available`` (from all partitions when none is available), each with weight longest + 1 - its own queue length.
    Partitions from 0xFF00 are never drawn. ``seed`` makes the draws repeatable.
    """

    def __init__(
        self,
        partition_count: int,
        available: Sequence[int],
        sticky_batch_bytes: int,
        seed: int,
        *,
        kind: str = "murmur2",
        ignore_keys: bool = False,
    ) -> None: ...
    @property
    def partition_count(self) -> int: ...
    @property
    def current(self) -> int:
        """The present sticky partition; -1 before the first draw."""
    def update(self, partition_count: int, available: Sequence[int]) -> None:
        """Follow the metadata. The sticky partition is kept if it is still available."""
    def set_queue_length(self, partition: int, batches: int) -> None:
        """Set the number of batches that wait for a partition. Costs nothing until the next draw. Unknown partitions
        are ignored.
        """
    def next_partition(self, size_bytes: int, key: bytes | None = None, named: int = 0) -> int:
        """Partition for a record of this size and key (``index`` does this for each record). ``named``: the number of
        the one that its client has named, of PARTITIONERS of client_stub/contract/wire.py. Raises ValueError for
        another.
        """

@final
class RecordBlock:
    """References to the records of one entry, or of a run of entries, grouped by partition, with order kept in each
    group.

    A reference has 16 bytes. Batches copy references, so a block may be dropped after it is distributed.
    """

    @property
    def entry(self) -> Entry:
        """The entry; for a run, the last one that was walked."""
    @property
    def taken(self) -> int:
        """Number of a run's ordinals that were handled."""
    @property
    def unplaced(self) -> list[int]:
        """Ordinals of entries with records without a partition, which were left alone (``retry_code`` 0xFFFE)."""
    @property
    def chain(self) -> Chain: ...
    @property
    def count(self) -> int: ...
    @property
    def groups(self) -> list[tuple[int, int, int]]:
        """(partition, start, stop) of each group: a range of references for BatchRecords.try_append."""
    @property
    def failures(self) -> list[tuple[int, int]]:
        """(record index, LocalCode) of failed records of :attr:`entry`. Their words already hold the code."""
    def accepted(self, ref: int) -> int:
        """:attr:`Entry.accepted` of the entry to which a reference belongs."""
    def find(self, start: int, stop: int, ordinal: int, record: int) -> int:
        """First reference in ``start:stop`` of a group to this record or a later one; ``stop`` if there is none.

        Raises ValueError for a range outside of the block.
        """

def index(
    chain: Chain,
    entry: Entry,
    partitioner: StickyPartitioner,
    max_request_bytes: int,
    retry_code: int = 0,
    in_work: WriteableBuffer | None = None,
    work_word: int = 0,
) -> RecordBlock:
    """Walk an entry's payload once: check bounds and types, choose partitions, store words, compute exact sizes.

    Only words 0xFFFF get a partition, by the partitioner that the entry's flags name, else by ``partitioner``'s kind. A
    record that names a partition which the topic lacks is a failure with INVALID_PARTITION, whose word stays 0xFFFF:
    the partition may appear. With the flag FIXED_PARTITIONS its word is the failure. A word that is a partition is
    kept, and fails with INVALID_PARTITION if the topic has no such partition any more. A done word is skipped; a
    failure word is reported again. From the first unreadable record on, all records fail with MALFORMED_RECORD. The
    size limit is Java's ``estimateSizeInBytesUpperBound``.

    ``retry_code`` limits the walk to records with that word, as if seen for the first time: a failure code (a
    partition may have appeared), or 0xFFFF (records with a partition are in batches already). 0xFFFE inverts this:
    records with a partition or a failure are reported, those without are left alone.

    While the entry is walked, ``in_work`` (8 bytes) holds ``work_word`` with the entry's ordinal in the low 50 bits;
    then 0.
    """

def index_run(
    chain: Chain,
    ordinals: ReadableBuffer,
    partitioner: StickyPartitioner,
    max_request_bytes: int,
    retry_code: int = 0,
    in_work: WriteableBuffer | None = None,
    work_word: int = 0,
    records_max: int = 65_535,
) -> RecordBlock:
    """:func:`index` over many entries: one block of all live entries that ``ordinals`` (8 bytes each) name.

    It ends early after an entry with failures, and after the entry with which it reaches ``records_max`` references;
    ``taken`` says how far it came.
    """

@disjoint_base
class CounterBlock:
    """Counters in words that other processes read, each named: ``indexes`` has the word of each row.

    ``block`` begins with its one writer's sequence word, which is odd during a write. Not thread-safe. Methods raise
    KeyError for a row without a name, and those that write raise TypeError if the block is read-only.
    """

    def __init__(self, block: ReadableBuffer, indexes: dict[str, int]) -> None:
        """Raises ValueError for a word that is not in the block, and for a block that is not aligned."""
    def inc(self, row: str, amount: int = 1) -> None:
        """Add to a row."""
    def add(self, amounts: dict[str, int]) -> None:
        """Add to several rows in one write: a reader sees all changes or none. A gauge stops at 0."""
    def set(self, row: str, value: int) -> None: ...
    def get(self, row: str) -> int: ...

@final
class Histogram:
    """A histogram in words that other processes read: a count per bound, one above all bounds, and the sum.

    ``block`` begins with its one writer's sequence word, which is odd during a write. The histogram begins at word
    ``first``. A value counts at the first bound that it does not exceed. Not thread-safe.
    """

    def __init__(self, block: WriteableBuffer, first: int, bounds: Sequence[int]) -> None:
        """Raises ValueError for bounds that do not ascend, and for a block that is too small or not aligned."""
    def observe(self, value: float) -> None:
        """Count one value. Its fraction is dropped, and negative values count as 0."""
    def observe_ages(self, records: BatchRecords, now_ms: float) -> None:
        """Count each record's time since it was accepted, in tenths of a millisecond."""

@final
class SendMeter:
    """Measures sizes and ages of sent batches, and the requests that one client per process would have sent in
    addition.

    Not thread-safe. The three histograms must be in one block.
    """

    def __init__(self, ages: Histogram, sizes: Histogram, counts: Histogram) -> None: ...
    @property
    def requests_saved(self) -> int:
        """Sum over all requests of the number of clients with records in it, minus one each."""
    def begin_request(self) -> None:
        """Begin a request: the batches counted next belong to it."""
    def count(self, records: BatchRecords, now_ms: float, is_first: bool) -> None:
        """Count a batch that is sent. If ``is_first``, also the ages of its records."""

@final
class BatchRecords:
    """The records of one ProducerBatch: references into its chain, with the exact encoded size.

    Uses 16 bytes per record, and 16 per entry that it has records of.
    """

    def __init__(self) -> None: ...
    @property
    def count(self) -> int: ...
    @property
    def size_bytes(self) -> int:
        """Exact size in bytes of the v2 batch, uncompressed, with its 61-byte header."""
    @property
    def first_timestamp_ms(self) -> int: ...
    @property
    def max_timestamp_ms(self) -> int: ...
    @property
    def first_cursor(self) -> tuple[int, int]:
        """(entry ordinal, record index) of the first record. Raises IndexError if empty, as last_cursor does."""
    @property
    def last_cursor(self) -> tuple[int, int]: ...
    def try_append(
        self, block: RecordBlock, start: int, stop: int, limit_bytes: int, since_ms: float = 0.0
    ) -> int:
        """Take references from ``start`` on while the batch stays within ``limit_bytes``. Returns how many were taken.

        The first record of an empty batch is always taken. ``since_ms``: when the records were accepted, for
        :class:`Histogram`. Raises ValueError for a range outside of the block, and for a block of another chain.
        """
    def encode_into(
        self,
        out: WriteableBuffer,
        producer_id: int,
        epoch: int,
        base_sequence: int,
        attributes: int = 0,
    ) -> int:
        """Write the whole v2 RecordBatch with its CRC-32C. Returns ``size_bytes``.

        Raises ValueError if ``out`` is too small, if a record's page is gone, or if its bytes differ from the indexed
        ones (LocalCode.ENCODE_MISMATCH).
        """
    def encode_records_into(self, out: WriteableBuffer) -> int:
        """Write only the records section (the input of a codec). Returns ``size_bytes`` - 61."""
    def split(self) -> tuple[BatchRecords, BatchRecords]:
        """Two new batches, halves by count, the first one larger. Raises ValueError for fewer than two records."""
    def select(self, indexes: Sequence[int]) -> BatchRecords:
        """A new batch of the records at these positions of this one (ascending), for those that a broker did not
        reject.
        """
    def entries(self) -> list[tuple[Entry, int]]: ...
    def shares(self) -> dict[tuple[int, int], tuple[int, int]]:
        """(client row, generation) → (records, their share of :func:`held_bytes`)."""
    @property
    def slice_count(self) -> int: ...
    def slice_entry(self, slice_index: int) -> Entry:
        """Entry of a slice. Raises ValueError if it has ended, which it cannot before the slice is done."""
    def slice_records(self, slice_index: int) -> int:
        """Number of records of a slice."""
    def slice_share(self, slice_index: int) -> tuple[int, int, int, int]:
        """(client row, generation, records, their share of :func:`held_bytes`). Raises ValueError as
        slice_entry does.
        """
    def slice_indexes(self, slice_index: int) -> list[int]:
        """Record indexes, within their entry, of a slice's records."""
    def slice_payload(self, slice_index: int) -> bytes:
        """Msgpack bytes of a slice's records, one after another. Raises ValueError if the journal no longer
        has them.
        """
    def outcomes(
        self,
        slice_index: int,
        *,
        number: int,
        kind: int,
        persistence: int,
        code: int,
        partition: int,
        base_offset: int,
        append_time_ms: int,
        text: bytes = b"",
    ) -> bytes:
        """One packed outcome (client_stub.contract.wire.OUTCOME) of a slice. ``base_offset`` is the whole batch's."""
    def mark_failed(self, code: int) -> None:
        """Set all words to ``code``, for a batch that fails before it has a descriptor: its words record the
        failure.
        """
    def mark_done(self) -> int:
        """Set all words to done. Returns how many entries this finished. A second call changes nothing."""

def held_bytes(count: int, payload_bytes: int) -> int:
    """Bytes used by a waiting submission: its entry in the journal, and the entry's index in the worker's memory."""

def mark_failed_done(chain: Chain, entry: Entry, indexes: Sequence[int]) -> bool:
    """Set the words of completed failures to done. True if this finished the entry. Can be repeated."""

def fail_remaining(chain: Chain, entry: Entry, code: int) -> list[int]:
    """Set the word of every record without a partition to the failure ``code``. Returns these records' indexes."""

def fail_records(chain: Chain, entry: Entry, indexes: Sequence[int], code: int) -> None:
    """Set the words of these records to the failure ``code``, except those that are done or have failed."""

def entry_words(chain: Chain, entry: Entry) -> list[int]:
    """Words of an entry, for inspection and tests."""

def entry_payload(chain: Chain, entry: Entry) -> bytes:
    """Payload of an entry as its client sent it. Raises ValueError if the entry is not live or a page of it is gone."""

def records_from_columns(columns: ReadableBuffer, count: int) -> bytes | memoryview:
    """Convert a columnar payload (wire.Format.ARROW) to the msgpack records of wire.Format.MSGPACK.

    Bounds are checked. A payload with incomplete columns yields ``count`` unreadable records (byte 0xC1), so that the
    submission is accepted and then fails with MALFORMED_RECORD in the one reader.
    """

def write_batch_header(
    out: WriteableBuffer,
    records_bytes: int,
    *,
    producer_id: int,
    epoch: int,
    base_sequence: int,
    attributes: int,
    count: int,
    first_timestamp_ms: int,
    max_timestamp_ms: int,
) -> int:
    """Write the 61-byte header, with CRC, before ``records_bytes`` that are in ``out``. Returns the batch's size in
    bytes.
    """

def set_store_hook(hook: Callable[[int], object] | None) -> None:
    """Call ``hook(point)`` after each store into a segment (for ``point`` see
    ``sidecar.tools.testing.kill_points.points``).

    For tests and fault injection. None removes the hook. It must not raise. Without a hook, a store costs one
    predicted branch more.
    """

def murmur2(data: ReadableBuffer) -> int:
    """Kafka's murmur2 (Utils.murmur2) as a signed 32-bit number."""

def crc32c(data: ReadableBuffer, crc: int = 0) -> int: ...
def store_release_u64(buffer: WriteableBuffer, offset: int, value: int) -> None:
    """One aligned 8-byte store, which publishes all plain writes before it. Raises ValueError outside of the buffer."""

def load_acquire_u64(buffer: ReadableBuffer, offset: int) -> int: ...
def compare_and_swap_u64(buffer: WriteableBuffer, offset: int, expected: int, desired: int) -> bool: ...
def fetch_add_u64(buffer: WriteableBuffer, offset: int, amount: int) -> int:
    """Atomic add modulo 2**64. Returns the previous value."""

def take_pages(owners: WriteableBuffer, incarnation: int, want: int, hint: int = 0) -> list[int]:
    """Take up to ``want`` free pages by compare-and-swap on their owner words, searching from ``hint``."""

def give_pages(owners: WriteableBuffer, incarnation: int, pages: Sequence[int]) -> None:
    """Free pages of this incarnation. Raises ValueError at the first page that it does not own (given back twice)."""
