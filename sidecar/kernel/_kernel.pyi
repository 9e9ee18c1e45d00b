"""Types of the compiled kernel; ``reference.py`` has the same API in pure Python.

Nothing here is thread-safe unless it says so: every object belongs to the loop of one worker. Long walks release
the GIL, so other threads of the process go on meanwhile.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Final, final

from _typeshed import ReadableBuffer, WriteableBuffer

ENTRY_HEADER_BYTES: Final = 64
PAGE_HEADER_BYTES: Final = 64
BATCH_HEADER_BYTES: Final = 61
RECORDS_PER_ENTRY_MAX: Final = 65_535
PAGE_TAKEN: Final = 1
PAGE_LINKED: Final = 2
STORE_POINTS: Final = 12
PARTITIONERS: Final[tuple[str, ...]]
HAS_HARDWARE_CRC32C: bool
ENTRY_INDEX_BYTES: int
RECORD_INDEX_BYTES: int

@final
class Chain:
    """One journal chain: a logical byte stream over pages, appended to by its one owner.

    ``pages`` is the page area of the segment, ``owners`` its owner words (u64 each), ``tail_word`` the chain's
    8-byte tail. A new Chain over a tail that is not 0 goes on at the next page after it; to see what is there
    already, use :meth:`recover`.
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
        """Accepted entries with a record whose word is not done."""
    @property
    def live_records(self) -> int: ...
    @property
    def page_count(self) -> int:
        """Pages linked to the chain now."""
    @property
    def damage(self) -> list[str]:
        """Damage that recovery could not read, one sentence each; empty for a chain in order."""
    def pages_needed(self, count: int, payload_bytes: int) -> int:
        """Pages to link before an entry of ``count`` records and ``payload_bytes`` can be appended."""
    def link_pages(self, page_indexes: Sequence[int]) -> None:
        """Add taken pages at the end: headers written, then the owner words say linked.

        Raises ValueError for a page that is not taken by this incarnation.
        """
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
        """Copy one submission into the pages and accept it by one release store of the tail.

        ``accepted_ms`` is the slot's clock, kept to the second; below 0: not known.

        Raises ValueError (nothing changed) for a count of 0, above 65,535 or above the payload's bytes, and for a
        format that is not msgpack (see :func:`records_from_columns`). Also without the pages asked for by
        :meth:`pages_needed`.
        """
    def release_pages(self) -> list[int]:
        """Take out the pages wholly below the tail whose every entry is finished, also from the middle.

        The caller gives them to the BufferPool, which stores the owner words.
        """
    def release_idle(self) -> list[int]:
        """As release_pages, and with nothing live the half-filled last page and unused linked pages too."""
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
        """Rebuild a chain from page headers and tail. Reads only; ``page_indexes`` spares the scan of all pages."""
    def entries(self, first: int = 0, stop: int | None = None) -> Iterator[Entry]:
        """Live entries with ordinals from ``first`` to before ``stop``, in order, each made when it is its turn.
        Of a recovered chain: those with a record not done."""
    def ordinals(self, first: int, limit: int) -> bytes:
        """The ordinals of up to ``limit`` live entries from ``first`` on, 8 bytes each, native order."""
    def entry(self, ordinal: int) -> Entry:
        """The live entry with this ordinal. ValueError when it has ended."""
    def log_file(self, ordinal: int) -> int:
        """Number of the file of the accept log that holds an entry; 0: in none."""
    def set_log_file(self, ordinal: int, number: int) -> None: ...
    def held_between(self, first: int, stop: int | None) -> tuple[int, int]:
        """(records not done, payload bytes) of the live entries from ordinal ``first`` on, before ``stop`` if given."""
    def streams(self) -> list[tuple[int, int, int, int, int, int]]:
        """(client row, generation, stream, last seq, records not done, their share of :func:`held_bytes`) of each
        stream with something live here."""
    def take_finished(self) -> list[tuple[int, int, int]]:
        """(ordinal, log file, payload bytes) of entries in a log that ended since the last call."""

@final
class Entry:
    """One accepted submission in a chain: what its header says. Made by Chain only, whenever it is asked for; the
    chain keeps two bytes for each."""

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
        """The second of the slot's clock at which it was accepted, modulo 65,535, plus 1; 0: not known."""
    @property
    def remaining(self) -> int:
        """Records whose word is not done, now."""

@final
class StickyPartitioner:
    """Where the records of one topic go. ``kind`` is one of PARTITIONERS:

    - ``murmur2``: Kafka's default. Keys by murmur2 (an empty key is a key); keyless records by the uniform sticky
      choice of KIP-794 (Kafka's BuiltInPartitioner), as all records with ``ignore_keys``.
    - ``consistent_random``: librdkafka's default. Keys by CRC-32; null and empty keys by chance.
    - ``fnv1a``: librdkafka's. FNV-1a made positive; a null key counts as an empty one. ``fnv1a_random``: null keys
      by chance.
    - ``random``, ``round_robin``: whatever the key, among ``available``.

    The sticky partition is kept until ``sticky_batch_bytes`` went to it. The record after that draws the next one
    from ``available`` (from all partitions when none is available), each with weight longest + 1 - its own queue
    length. Partitions from 0xFF00 are never drawn. ``seed`` makes the draws repeatable.
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
        """The sticky partition of the moment, -1 before the first draw."""
    def update(self, partition_count: int, available: Sequence[int]) -> None:
        """Follow the metadata; the choice survives if its partition is still available."""
    def set_queue_length(self, partition: int, batches: int) -> None:
        """How many batches wait for a partition; costs nothing until the next draw. Unknown partitions are ignored."""
    def next_partition(self, size_bytes: int, key: bytes | None = None) -> int:
        """Where a record of this size and key goes (what ``index`` does for each)."""

@final
class RecordBlock:
    """The references of the records of one entry, or of a run of them, grouped by partition, order kept in each group.

    16 bytes each. Batches copy what they take, so a block may go once it is distributed.
    """

    @property
    def entry(self) -> Entry:
        """The entry; of a run, the last that was walked."""
    @property
    def taken(self) -> int:
        """How many ordinals of a run were looked at."""
    @property
    def unplaced(self) -> list[int]:
        """Ordinals of entries with records that have no partition and were left alone (``retry_code`` 0xFFFE)."""
    @property
    def chain(self) -> Chain: ...
    @property
    def count(self) -> int: ...
    @property
    def groups(self) -> list[tuple[int, int, int]]:
        """(partition, start, stop): a range of references for BatchRecords.try_append."""
    @property
    def failures(self) -> list[tuple[int, int]]:
        """(record index, LocalCode) of :attr:`entry`: the word already carries the code."""
    def accepted(self, ref: int) -> int:
        """:attr:`Entry.accepted` of the entry that a reference names."""
    def find(self, start: int, stop: int, ordinal: int, record: int) -> int:
        """The first reference of a group's ``start:stop`` to this record or a later one; ``stop``: none.

        Raises ValueError for a range outside the block.
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
    """Walk an entry's payload once: check bounds and types, choose partitions, store words, note exact sizes.

    Only words 0xFFFF are assigned. A word already a partition is kept (it fails INVALID_PARTITION when that is not in
    the topic any more). A done word is skipped, a failure word is reported again. From the first unreadable record
    on, all fail MALFORMED_RECORD. Size limit as Java's ``estimateSizeInBytesUpperBound``.
    A record that names a partition beyond the topic's fails INVALID_PARTITION, but its word stays 0xFFFF, since the
    partition may appear. :func:`fail_remaining` makes that failure final.
    With ``retry_code`` 0xFFFF only records without a partition are looked at: the others are in batches already.
    With 0xFFFE it is the other way round: records with a partition or a failure are reported, those without are left
    alone. While the entry is walked, ``in_work`` (8 bytes) holds ``work_word`` with its ordinal in the low 50 bits;
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
    """:func:`index` over many entries: one block of what ``ordinals`` (8 bytes each) name and is live.

    It ends early behind an entry with failures, and behind the one with which there are ``records_max`` references:
    ``taken`` says how far it came.
    """

@final
class Histogram:
    """A histogram in words that other processes read: a count for each bound, one above them all, and the sum.

    ``block`` begins with the sequence word of its one writer, which is odd inside a write; the histogram begins at the
    word ``first`` of it. A value is counted at the first bound that it does not exceed. Not thread-safe.
    """

    def __init__(self, block: WriteableBuffer, first: int, bounds: Sequence[int]) -> None:
        """ValueError for bounds that do not ascend, and for a block that is too small or not aligned."""
    def observe(self, value: float) -> None:
        """Count one value; its fraction is cut off, and below 0 is 0."""
    def observe_ages(self, records: BatchRecords, now_ms: float) -> None:
        """Count each record's time since it was accepted, in tenths of a millisecond."""

@final
class SendMeter:
    """Sizes and ages of the batches of requests, and how many requests one client in each process would have sent.

    Not thread-safe. One block for all three histograms.
    """

    def __init__(self, ages: Histogram, sizes: Histogram, counts: Histogram) -> None: ...
    @property
    def requests_saved(self) -> int:
        """Over all requests, the clients with records in it, but for the first."""
    def begin_request(self) -> None:
        """The batches that are counted next are of one request."""
    def count(self, records: BatchRecords, now_ms: float, is_first: bool) -> None:
        """Count a batch that goes out; the ages of its records when it does so for the first time."""

@final
class BatchRecords:
    """The records of one ProducerBatch: references into its chain, with the exact encoded size kept up to date.

    16 bytes a record and as much for each entry that it has records of.
    """

    def __init__(self) -> None: ...
    @property
    def count(self) -> int: ...
    @property
    def size_bytes(self) -> int:
        """Exact bytes of the v2 batch, uncompressed, 61-byte header included."""
    @property
    def first_timestamp_ms(self) -> int: ...
    @property
    def max_timestamp_ms(self) -> int: ...
    @property
    def first_cursor(self) -> tuple[int, int]:
        """(entry ordinal, record index) of the first record. IndexError when empty, as last_cursor."""
    @property
    def last_cursor(self) -> tuple[int, int]: ...
    def try_append(
        self, block: RecordBlock, start: int, stop: int, limit_bytes: int, since_ms: float = 0.0
    ) -> int:
        """Take references from ``start`` while the batch stays within ``limit_bytes``; returns how many.

        ``since_ms``: when they were accepted, for :class:`Histogram`.

        The first record of an empty batch is always taken. Raises ValueError for a range outside the block, and for
        a block of another chain.
        """
    def encode_into(
        self,
        out: WriteableBuffer,
        producer_id: int,
        epoch: int,
        base_sequence: int,
        attributes: int = 0,
    ) -> int:
        """Write the whole v2 RecordBatch with its CRC-32C; returns ``size_bytes``.

        Raises ValueError when ``out`` is too small and when a record's pages are gone or its bytes are not those
        that were indexed (LocalCode.ENCODE_MISMATCH).
        """
    def encode_records_into(self, out: WriteableBuffer) -> int:
        """Write the records section only (what a codec compresses); returns ``size_bytes`` - 61."""
    def split(self) -> tuple[BatchRecords, BatchRecords]:
        """Two new halves by count, the first the larger. ValueError with fewer than two records."""
    def select(self, indexes: Sequence[int]) -> BatchRecords:
        """A new batch of the records at these positions of this one (ascending): those that a broker did not reject."""
    def entries(self) -> list[tuple[Entry, int]]: ...
    def shares(self) -> dict[tuple[int, int], tuple[int, int]]:
        """(client row, generation) → (records, their share of :func:`held_bytes`)."""
    @property
    def slice_count(self) -> int: ...
    def slice_entry(self, slice_index: int) -> Entry:
        """ValueError when the entry has ended, which it does not before the slice is done."""
    def slice_records(self, slice_index: int) -> int:
        """Records of one slice."""
    def slice_share(self, slice_index: int) -> tuple[int, int, int, int]:
        """(client row, generation, records, their share of :func:`held_bytes`). ValueError as slice_entry."""
    def slice_indexes(self, slice_index: int) -> list[int]:
        """The record indexes, within their entry, of one slice's records."""
    def slice_payload(self, slice_index: int) -> bytes:
        """The msgpack bytes of one slice's records, end to end. ValueError when they are not in the journal."""
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
        """One packed outcome (client_stub.wire.OUTCOME) for one slice; ``base_offset`` is the batch's own."""
    def mark_failed(self, code: int) -> None:
        """Words := ``code``, for a batch that fails before it had a descriptor: the failure is a fact by its words."""
    def mark_done(self) -> int:
        """Words := done; returns how many entries were finished by it. A second call changes nothing."""

def held_bytes(count: int, payload_bytes: int) -> int:
    """Bytes of a submission that waits: its entry in the journal, and the index of it in the worker's memory."""

def mark_failed_done(chain: Chain, entry: Entry, indexes: Sequence[int]) -> bool:
    """Words of completed failures := done; True when this finished the entry. Repeatable."""

def fail_remaining(chain: Chain, entry: Entry, code: int) -> list[int]:
    """Give every record not yet partitioned the failure word ``code``; returns their indexes."""

def fail_records(chain: Chain, entry: Entry, indexes: Sequence[int], code: int) -> None:
    """Give these records of an entry the failure word ``code``; not those that are done or have failed already."""

def entry_words(chain: Chain, entry: Entry) -> list[int]:
    """The words of an entry, for inspection and tests."""

def entry_payload(chain: Chain, entry: Entry) -> bytes:
    """The entry's payload as its client sent it. ValueError when it is not live or a page of it is gone."""

def records_from_columns(columns: ReadableBuffer, count: int) -> bytes:
    """Turn a columnar payload (wire.Format.ARROW) into the msgpack records of wire.Format.MSGPACK.

    Bounds are checked. A payload whose columns are not whole yields ``count`` unreadable records (byte 0xC1): the
    submission is accepted, consumed and failed MALFORMED_RECORD by the one reader there is.
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
    """Write the 61-byte header before ``records_bytes`` already in ``out``; CRC inside. Returns the batch's bytes."""

def set_store_hook(hook: Callable[[int], object] | None) -> None:
    """``hook(point)`` is called after each store into a segment (``point``: see ``sidecar.kill_points.points``).

    For tests and fault injection; None ends it. It must not raise. One predicted branch a store while there is none.
    """

def murmur2(data: ReadableBuffer) -> int:
    """Kafka's murmur2 (Utils.murmur2) as a signed 32-bit number."""

def encode_varint(value: int) -> bytes:
    """Zig-zag varint of a signed 64-bit number (ByteUtils.writeVarlong)."""

def decode_varint(data: ReadableBuffer, offset: int = 0) -> tuple[int, int]:
    """(value, offset after it); ValueError when cut short or longer than 10 bytes."""

def crc32c(data: ReadableBuffer, crc: int = 0) -> int: ...
def store_release_u64(buffer: WriteableBuffer, offset: int, value: int) -> None:
    """One aligned 8-byte store that publishes every plain write before it. ValueError outside the buffer."""

def load_acquire_u64(buffer: ReadableBuffer, offset: int) -> int: ...
def compare_and_swap_u64(buffer: WriteableBuffer, offset: int, expected: int, desired: int) -> bool: ...
def fetch_add_u64(buffer: WriteableBuffer, offset: int, amount: int) -> int:
    """Atomic add modulo 2**64; returns the value before it."""

def take_pages(owners: WriteableBuffer, incarnation: int, want: int, hint: int = 0) -> list[int]:
    """Take up to ``want`` free pages by compare-and-swap on their owner words, searching from ``hint``."""

def give_pages(owners: WriteableBuffer, incarnation: int, pages: Sequence[int]) -> None:
    """Free pages of this incarnation; ValueError at the first that it does not own (given back twice)."""
