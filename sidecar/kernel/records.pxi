# RecordBlock and the index walk: from accepted payloads to references grouped by partition.

cdef struct Ref:
    uint32_t offset          # of the msgpack record in the entry's payload
    uint32_t extent          # its bytes there
    uint32_t body_bytes      # encoded key, value and headers, varints included: all but deltas and attributes
    uint16_t index           # in the submission
    uint16_t partition

cdef struct Failure:
    uint16_t index
    uint16_t code

assert sizeof(Ref) == 16


@cython.final
@cython.freelist(64)
cdef class RecordBlock:
    cdef readonly Chain chain
    cdef readonly list groups
    cdef readonly list failures
    cdef readonly Py_ssize_t taken    # entries that were walked
    cdef uint64_t position            # of the last of them
    cdef int64_t base_timestamp_ms    # of the only one
    cdef Ref *refs
    cdef int64_t *timestamps          # per reference; NULL when all have the only entry's base timestamp
    cdef bint own_timestamps          # some record brought its own
    cdef uint64_t *positions          # per reference: its entry's; NULL when there is one entry
    cdef uint32_t ref_count
    cdef list waiting                 # ordinals of entries with records that have no partition yet

    def __cinit__(self):
        self.refs = NULL
        self.timestamps = NULL
        self.positions = NULL

    def __init__(self):
        raise TypeError("a RecordBlock is made by index() or index_run()")

    def __dealloc__(self):
        free(self.refs)
        free(self.timestamps)
        free(self.positions)

    @property
    def entry(self):
        if self.chain.left_of(self.position) == 0:
            raise ValueError(f"the block's last entry of {self.chain!r} has ended")
        return self.chain.view(self.position)

    @property
    def unplaced(self):
        return self.waiting

    @property
    def count(self):
        return self.ref_count

    cdef inline uint64_t position_of(self, uint32_t ref) noexcept nogil:
        return self.positions[ref] if self.positions != NULL else self.position

    cdef inline int64_t timestamp_of(self, uint32_t ref) noexcept nogil:
        return self.timestamps[ref] if self.timestamps != NULL else self.base_timestamp_ms

    def accepted(self, ref):
        if not 0 <= ref < self.ref_count:
            raise ValueError(f"reference {ref} of a block with {self.ref_count}")
        if self.chain.left_of(self.position_of(ref)) == 0:
            return 0
        return self.chain.header_at(self.position_of(ref)).accepted

    def find(self, start, stop, ordinal, record):
        cdef uint32_t low, high, middle
        cdef int64_t wanted = record
        cdef uint64_t wanted_at = <uint64_t> ordinal * LINE, at
        if not 0 <= start <= stop <= self.ref_count:
            raise ValueError(f"references {start}:{stop} of a block with {self.ref_count}")
        low = start
        high = stop
        while low < high:
            middle = low + (high - low) // 2
            at = self.position_of(middle)
            if at < wanted_at or (at == wanted_at and self.refs[middle].index < wanted):
                low = middle + 1
            else:
                high = middle
        return low


cdef struct Walk:
    # Results of the index walk for the grouping after it.
    Ref *refs
    int64_t *timestamps      # per reference; of one entry NULL until the first explicit one
    uint64_t *positions      # per reference: its entry's; NULL for a walk over one entry
    Failure *failures        # of the last entry
    uint32_t ref_count
    uint32_t ref_capacity
    uint32_t failure_count
    uint32_t touched_count
    bint own_timestamps
    bint left_unplaced       # the last entry has records without a partition, which were left alone
    bint out_of_memory
    bint page_missing


cdef inline void fail_record(Walk *walk, uint16_t *word, uint32_t index, uint16_t code, uint32_t count) noexcept nogil:
    if walk.failures == NULL:
        walk.failures = <Failure *> malloc(count * sizeof(Failure))
        if walk.failures == NULL:
            walk.out_of_memory = True
            return
    if code != INVALID_PARTITION or word[0] != WORD_UNPARTITIONED:
        word[0] = code
        stored(AT_FAILED_WORD)
    walk.failures[walk.failure_count].index = <uint16_t> index
    walk.failures[walk.failure_count].code = code
    walk.failure_count += 1


cdef inline uint16_t choose_partition(
    const Record *r, StickyPartitioner partitioner, int named, int64_t body, int64_t max_body
) noexcept nogil:
    """Word of a record seen for the first time: a partition or a failure."""
    cdef uint32_t partition
    if body > max_body:
        return RECORD_TOO_LARGE
    if r.timestamp_invalid:
        return INVALID_TIMESTAMP
    if r.has_partition:
        if r.partition < 0 or r.partition >= partitioner.partition_count or r.partition >= WORD_FAILED_MIN:
            return INVALID_PARTITION
        return <uint16_t> r.partition
    if named:
        partition = partitioner.place_as(named, r.key, r.key_bytes, body + 6)
    else:
        partition = partitioner.place(r.key, r.key_bytes, body + 6)
    return <uint16_t> partition if partition < WORD_FAILED_MIN else INVALID_PARTITION


cdef Parse parse_across(Chain chain, uint64_t position, int64_t have, Record *r, Scratch *scratch) noexcept nogil:
    """Read a record that crosses a page's edge, from a copy that doubles until it is large enough."""
    cdef int64_t size = 0
    cdef Parse status = PARSE_NEED_MORE
    while status == PARSE_NEED_MORE:
        if size == have:
            return PARSE_MALFORMED
        size = min(have, max(2 * size, r.extent + LINE))
        if not scratch_reserve(scratch, size) or not chain.copy_out(position, scratch.bytes, size):
            return PARSE_NEED_MORE
        status = parse_record(scratch.bytes, size, r)
    return status


cdef bint reserve_refs(Walk *walk, uint32_t more) noexcept nogil:
    """Make room for ``more`` references, in a walk over several entries."""
    cdef uint32_t capacity = max(walk.ref_capacity, <uint32_t> 64)
    cdef void *grown
    while capacity < walk.ref_count + more:
        capacity *= 2
    if capacity == walk.ref_capacity:
        return True
    grown = realloc(walk.refs, capacity * sizeof(Ref))
    if grown == NULL:
        return False
    walk.refs = <Ref *> grown
    grown = realloc(walk.timestamps, capacity * sizeof(int64_t))
    if grown == NULL:
        return False
    walk.timestamps = <int64_t *> grown
    grown = realloc(walk.positions, capacity * sizeof(uint64_t))
    if grown == NULL:
        return False
    walk.positions = <uint64_t *> grown
    walk.ref_capacity = capacity
    return True


cdef void index_walk(
    Chain chain, uint64_t position, const EntryHeader *header, StickyPartitioner partitioner, int64_t max_body,
    uint16_t retry_code, Walk *walk, Scratch *scratch
) noexcept nogil:
    cdef uint64_t payload_begin = payload_at(position, header.count)
    cdef uint64_t word_at = words_at(position)
    cdef int64_t left = header.payload_bytes
    cdef int64_t offset = 0, here, body, base_timestamp_ms = header.base_timestamp_ms
    cdef uint32_t i, count = header.count
    cdef uint32_t partition
    cdef int named = header.flags >> PARTITIONER_SHIFT & PARTITIONER_MASK
    cdef bint may_appear = not header.flags & FIXED_PARTITIONS
    cdef uint16_t *word
    cdef uint16_t code
    cdef Window words, bytes
    cdef Record r
    cdef Ref *ref
    cdef Parse status = PARSE_OK
    memset(&words, 0, sizeof(words))
    memset(&bytes, 0, sizeof(bytes))
    for i in range(count):
        if word_at >= words.end and not chain.window(word_at, &words):
            walk.page_missing = True
            return
        word = <uint16_t *> (words.bytes + (word_at - words.begin))
        word_at += 2
        if status == PARSE_OK and left > 0:
            while payload_begin + offset >= bytes.end:
                if not chain.window(payload_begin + offset, &bytes):
                    walk.page_missing = True
                    return
            here = min(left, <int64_t> (bytes.end - payload_begin) - offset)
            status = parse_record(bytes.bytes + (payload_begin + offset - bytes.begin), here, &r)
            if status == PARSE_NEED_MORE:
                status = PARSE_MALFORMED if here == left else parse_across(
                    chain, payload_begin + offset, left, &r, scratch
                )
                if status == PARSE_NEED_MORE:
                    walk.out_of_memory = True
                    return
        else:
            # After the first unreadable record it is unknown where others begin.
            status = PARSE_MALFORMED
        code = word[0]
        if retry_code == WORD_DONE:
            # Only records with a partition or a failure; the others wait for the topic's partitions.
            if code == WORD_UNPARTITIONED:
                walk.left_unplaced = True
                code = WORD_DONE
        elif retry_code:
            # Only records with one certain word: all others are placed already.
            code = WORD_UNPARTITIONED if code == retry_code else WORD_DONE
        if status != PARSE_OK:
            if code != WORD_DONE:
                fail_record(walk, word, i, MALFORMED_RECORD if not WORD_FAILED_MIN <= code < WORD_DONE else code, count)
            continue
        body = varint_size(r.key_bytes) + varint_size(r.value_bytes) + r.headers_bytes
        if r.key_bytes > 0:
            body += r.key_bytes
        if r.value_bytes > 0:
            body += r.value_bytes
        if code == WORD_UNPARTITIONED:
            code = choose_partition(&r, partitioner, named, body, max_body)
            if code != INVALID_PARTITION or not may_appear:  # the partition may appear: its record stays without one until it fails
                word[0] = code
                stored(AT_INDEX_WORD)
        elif code < WORD_FAILED_MIN and code >= partitioner.partition_count:
            code = INVALID_PARTITION
        if code < WORD_FAILED_MIN:
            partition = code
            if partitioner.counts[partition] == 0:
                partitioner.touched[walk.touched_count] = partition
                walk.touched_count += 1
            partitioner.counts[partition] += 1
            ref = walk.refs + walk.ref_count
            walk.ref_count += 1
            ref.offset = <uint32_t> offset
            ref.extent = <uint32_t> r.extent
            ref.body_bytes = <uint32_t> body
            ref.index = <uint16_t> i
            ref.partition = code
            if walk.positions != NULL:
                walk.positions[walk.ref_count - 1] = position
            if r.has_timestamp:
                walk.own_timestamps = True
                if walk.timestamps == NULL:
                    walk.timestamps = <int64_t *> malloc(count * sizeof(int64_t))
                    if walk.timestamps == NULL:
                        walk.out_of_memory = True
                        return
                    fill_timestamps(walk.timestamps, 0, walk.ref_count - 1, base_timestamp_ms)
                walk.timestamps[walk.ref_count - 1] = r.timestamp_ms
            elif walk.timestamps != NULL:
                walk.timestamps[walk.ref_count - 1] = base_timestamp_ms
        elif code != WORD_DONE:
            fail_record(walk, word, i, code, count)
        offset += r.extent
        left -= r.extent


cdef inline void fill_timestamps(int64_t *timestamps, uint32_t start, uint32_t stop, int64_t value) noexcept nogil:
    while start < stop:
        timestamps[start] = value
        start += 1


cdef bint group_refs(StickyPartitioner partitioner, Walk *walk) noexcept nogil:
    """Sort the references by partition, order kept (counting sort); leaves each partition's end in ``counts``."""
    cdef Ref *sorted_refs
    cdef int64_t *sorted_timestamps = NULL
    cdef uint64_t *sorted_positions = NULL
    cdef uint32_t i, at = 0, count, to
    for i in range(walk.touched_count):
        count = partitioner.counts[partitioner.touched[i]]
        partitioner.counts[partitioner.touched[i]] = at
        at += count
    if walk.touched_count <= 1:
        if walk.touched_count:
            partitioner.counts[partitioner.touched[0]] = at
        return True
    sorted_refs = <Ref *> malloc(walk.ref_count * sizeof(Ref))
    if sorted_refs == NULL:
        return False
    if walk.timestamps != NULL:
        sorted_timestamps = <int64_t *> malloc(walk.ref_count * sizeof(int64_t))
        if sorted_timestamps == NULL:
            free(sorted_refs)
            return False
    if walk.positions != NULL:
        sorted_positions = <uint64_t *> malloc(walk.ref_count * sizeof(uint64_t))
        if sorted_positions == NULL:
            free(sorted_refs)
            free(sorted_timestamps)
            return False
    for i in range(walk.ref_count):
        to = partitioner.counts[walk.refs[i].partition]
        partitioner.counts[walk.refs[i].partition] = to + 1
        sorted_refs[to] = walk.refs[i]
        if sorted_timestamps != NULL:
            sorted_timestamps[to] = walk.timestamps[i]
        if sorted_positions != NULL:
            sorted_positions[to] = walk.positions[i]
    free(walk.refs)
    free(walk.timestamps)
    free(walk.positions)
    walk.refs = sorted_refs
    walk.timestamps = sorted_timestamps
    walk.positions = sorted_positions
    return True


cdef RecordBlock block_of(Chain chain, uint64_t position, StickyPartitioner partitioner, Walk *walk, bint grouped):
    """Move the walk's references to a block, or free them; reset the partitioner's scratch to zero."""
    cdef RecordBlock block = RecordBlock.__new__(RecordBlock)
    cdef uint32_t i, start = 0, partition
    block.chain = chain
    block.position = position
    block.refs = walk.refs
    block.timestamps = walk.timestamps
    block.positions = walk.positions
    block.own_timestamps = walk.own_timestamps
    block.ref_count = walk.ref_count
    block.groups = []
    block.failures = []
    if grouped:
        for i in range(walk.touched_count):
            partition = partitioner.touched[i]
            block.groups.append((partition, start, partitioner.counts[partition]))
            start = partitioner.counts[partition]
    for i in range(walk.touched_count):
        partitioner.counts[partitioner.touched[i]] = 0
    if walk.failures != NULL:
        for i in range(walk.failure_count):
            block.failures.append((walk.failures[i].index, walk.failures[i].code))
        free(walk.failures)
    if walk.page_missing:
        raise ValueError(f"a page of entry {position // LINE} of {chain!r} is not linked")
    if not grouped:
        raise MemoryError()
    return block


def index(
    Chain chain not None,
    Entry entry not None,
    StickyPartitioner partitioner not None,
    max_request_bytes,
    uint16_t retry_code=0,
    in_work=None,
    uint64_t work_word=0,
):
    cdef RecordBlock block
    cdef Walk walk
    cdef Scratch scratch
    cdef EntryHeader *header
    cdef HeldBuffer noted
    cdef uint64_t *note = NULL
    cdef int64_t max_body = <int64_t> max_request_bytes - UPPER_BOUND_OVERHEAD
    cdef bint grouped
    check_member(chain, entry)
    if in_work is not None:
        noted = hold(in_work, True)
        note = word_at(&noted.view, 0)
        note[0] = work_word | (entry.position // LINE & WORK_NUMBER)
    header = chain.header_at(entry.position)
    memset(&walk, 0, sizeof(walk))
    walk.refs = <Ref *> malloc(header.count * sizeof(Ref))
    if walk.refs == NULL:
        raise MemoryError()
    scratch = take_scratch()
    if header.count >= NOGIL_RECORDS:
        with nogil:
            index_walk(chain, entry.position, header, partitioner, max_body, retry_code, &walk, &scratch)
            grouped = not walk.out_of_memory and not walk.page_missing and group_refs(partitioner, &walk)
    else:
        index_walk(chain, entry.position, header, partitioner, max_body, retry_code, &walk, &scratch)
        grouped = not walk.out_of_memory and not walk.page_missing and group_refs(partitioner, &walk)
    give_scratch(scratch)
    if note != NULL:
        note[0] = 0
    block = block_of(chain, entry.position, partitioner, &walk, grouped)
    block.base_timestamp_ms = header.base_timestamp_ms
    block.taken = 1
    block.waiting = [entry.position // LINE] if walk.left_unplaced else []
    return block


def index_run(
    Chain chain not None,
    ordinals,
    StickyPartitioner partitioner not None,
    max_request_bytes,
    uint16_t retry_code=0,
    in_work=None,
    uint64_t work_word=0,
    uint32_t records_max=65535,
):
    cdef RecordBlock block
    cdef Walk walk
    cdef Scratch scratch
    cdef EntryHeader *header
    cdef HeldBuffer wanted = hold(ordinals, False), noted
    cdef uint64_t *note = NULL
    cdef uint64_t *ordinal = <uint64_t *> wanted.view.buf
    cdef Py_ssize_t total = wanted.view.len // 8, taken = 0
    cdef int64_t max_body = <int64_t> max_request_bytes - UPPER_BOUND_OVERHEAD
    cdef uint64_t position = 0
    cdef list waiting = []
    cdef bint grouped
    if in_work is not None:
        noted = hold(in_work, True)
        note = word_at(&noted.view, 0)
    memset(&walk, 0, sizeof(walk))
    scratch = take_scratch()
    while taken < total and walk.ref_count < records_max and not walk.failure_count:
        position = ordinal[taken] * LINE
        taken += 1
        if chain.left_of(position) == 0:
            continue
        header = chain.header_at(position)
        if note != NULL:
            note[0] = work_word | (ordinal[taken - 1] & WORK_NUMBER)
        if not reserve_refs(&walk, header.count):
            walk.out_of_memory = True
            break
        walk.left_unplaced = False
        if header.count >= NOGIL_RECORDS:
            with nogil:
                index_walk(chain, position, header, partitioner, max_body, retry_code, &walk, &scratch)
        else:
            index_walk(chain, position, header, partitioner, max_body, retry_code, &walk, &scratch)
        if walk.out_of_memory or walk.page_missing:
            break
        if walk.left_unplaced:
            waiting.append(position // LINE)
    grouped = not walk.out_of_memory and not walk.page_missing and group_refs(partitioner, &walk)
    give_scratch(scratch)
    if note != NULL:
        note[0] = 0
    block = block_of(chain, position, partitioner, &walk, grouped)
    block.taken = taken
    block.waiting = waiting
    return block
