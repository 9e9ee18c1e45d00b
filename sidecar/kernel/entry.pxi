# Entry, and how pages and entries lie in the journal.
#
# Page k of a chain carries its bytes [k * payload, (k + 1) * payload), payload = page_bytes - 64.
#
#   page    0 u32 slot   4 u32 chain   8 u64 page ordinal   16 u32 offset of the first entry that begins here
#          20 u32 incarnation   24 u64 ordinal of that entry   32.. zero   64 payload
#   entry   0 u32 entry bytes   4 u32 count   8 u64 ordinal   16 u32 client row   20 u32 client generation
#          24 u32 stream   28 u8 format   29 u8 flags   30 u16 accepted   32 u64 seq   40 i64 base timestamp
#          48 u64 transaction number   56 u32 payload bytes   60 u32 crc32c (0: not kept)
#          64 one u16 word per record, padded to 8; then the payload; zeros up to the next 64
#
# ``accepted`` is the second of the slot's clock, modulo 65,535, plus 1; 0: not known.
#
# An entry's ordinal is its position in 64-byte lines: it never decreases, has no second copy that could disagree, and
# survives the release of every page of the chain.

cdef struct PageHeader:
    uint32_t slot
    uint32_t chain_id
    uint64_t ordinal
    uint32_t first_entry_offset
    uint32_t incarnation
    uint64_t first_entry_ordinal

cdef struct EntryHeader:
    uint32_t entry_bytes
    uint32_t count
    uint64_t ordinal
    uint32_t client_row
    uint32_t client_generation
    uint32_t stream
    uint8_t format
    uint8_t flags
    uint16_t accepted
    uint64_t seq
    int64_t base_timestamp_ms
    uint64_t txn_number
    uint32_t payload_bytes
    uint32_t crc32c

assert sizeof(EntryHeader) == ENTRY_HEADER and sizeof(PageHeader) <= PAGE_HEADER


cdef inline uint64_t words_bytes(uint64_t count) noexcept nogil:
    return (2 * count + 7) & ~(<uint64_t> 7)


cdef inline uint64_t entry_bytes_of(uint64_t count, uint64_t payload_bytes) noexcept nogil:
    return (ENTRY_HEADER + words_bytes(count) + payload_bytes + LINE - 1) & ~(<uint64_t> (LINE - 1))


cdef inline uint64_t held_bytes_of(uint64_t count, uint64_t payload_bytes) noexcept nogil:
    """Bytes used by a waiting entry: in the journal, and for its index in the owner's memory."""
    return entry_bytes_of(count, payload_bytes) + INDEX_ENTRY + INDEX_RECORD * count


cdef class Chain


@cython.final
@cython.freelist(64)
@cython.no_gc
cdef class Entry:
    # Fields of its header, read when they are asked for: nothing is kept per entry but one count (see PageUse).
    cdef readonly Chain chain
    cdef readonly uint64_t position
    cdef readonly uint32_t count
    cdef readonly uint64_t seq
    cdef readonly uint32_t stream
    cdef readonly uint32_t client_row
    cdef readonly uint32_t client_generation
    cdef readonly int64_t base_timestamp_ms
    cdef readonly uint32_t payload_bytes
    cdef readonly uint8_t format
    cdef readonly uint8_t flags
    cdef readonly uint16_t accepted
    cdef readonly uint64_t txn_number

    def __init__(self):
        raise TypeError("an Entry is made by Chain.append or Chain.recover")

    @property
    def ordinal(self):
        return self.position // LINE

    @property
    def chain_id(self):
        return self.chain.chain_id

    @property
    def remaining(self):
        return self.chain.left_of(self.position)

    def __repr__(self):
        return f"<Entry {self.position // LINE} stream={self.stream} seq={self.seq} {self.remaining}/{self.count}>"


cdef inline uint64_t words_at(uint64_t position) noexcept nogil:
    return position + ENTRY_HEADER


cdef inline uint64_t payload_at(uint64_t position, uint32_t count) noexcept nogil:
    return position + ENTRY_HEADER + words_bytes(count)
