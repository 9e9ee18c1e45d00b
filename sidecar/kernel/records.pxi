# RecordBlock and the index walk: from an accepted payload to references grouped by partition.

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
    cdef readonly Entry entry
    cdef readonly Chain chain
    cdef readonly list groups
    cdef readonly list failures
    cdef Ref *refs
    cdef int64_t *timestamps          # per reference; NULL when all have the entry's base timestamp
    cdef uint32_t ref_count

    def __cinit__(self):
        self.refs = NULL
        self.timestamps = NULL

    def __init__(self):
        raise TypeError("a RecordBlock is made by index()")

    def __dealloc__(self):
        free(self.refs)
        free(self.timestamps)

    @property
    def count(self):
        return self.ref_count

    def find(self, start, stop, record):
        cdef uint32_t low, high, middle
        cdef int64_t wanted = record
        if not 0 <= start <= stop <= self.ref_count:
            raise ValueError(f"references {start}:{stop} of a block with {self.ref_count}")
        low = start
        high = stop
        while low < high:
            middle = low + (high - low) // 2
            if self.refs[middle].index < wanted:
                low = middle + 1
            else:
                high = middle
        return low


cdef inline int64_t block_timestamp(RecordBlock block, uint32_t ref) noexcept nogil:
    return block.timestamps[ref] if block.timestamps != NULL else block.entry.base_timestamp_ms


cdef struct Walk:
    # What the index walk leaves for the grouping after it.
    Ref *refs
    int64_t *timestamps      # per record index, NULL until the first explicit one
    Failure *failures
    uint32_t ref_count
    uint32_t failure_count
    uint32_t touched_count
    bint out_of_memory
    bint page_missing


cdef inline void fail_record(Walk *walk, uint16_t *word, uint32_t index, uint16_t code, uint32_t count) noexcept nogil:
    if walk.failures == NULL:
        walk.failures = <Failure *> malloc(count * sizeof(Failure))
        if walk.failures == NULL:
            walk.out_of_memory = True
            return
    word[0] = code
    stored(AT_FAILED_WORD)
    walk.failures[walk.failure_count].index = <uint16_t> index
    walk.failures[walk.failure_count].code = code
    walk.failure_count += 1


cdef inline uint16_t choose_partition(const Record *r, StickyPartitioner partitioner, int64_t body, int64_t max_body) noexcept nogil:
    """The word of a record seen for the first time: a partition or a failure."""
    cdef uint32_t partition
    if body > max_body:
        return RECORD_TOO_LARGE
    if r.timestamp_invalid:
        return INVALID_TIMESTAMP
    if r.has_partition:
        if r.partition < 0 or r.partition >= partitioner.partition_count or r.partition >= WORD_FAILED_MIN:
            return INVALID_PARTITION
        return <uint16_t> r.partition
    partition = partitioner.place(r.key, r.key_bytes, body + 6)
    return <uint16_t> partition if partition < WORD_FAILED_MIN else INVALID_PARTITION


cdef Parse parse_across(Chain chain, uint64_t position, int64_t have, Record *r, Scratch *scratch) noexcept nogil:
    """Read a record that goes on over a page's edge, out of a copy that doubles until it suffices."""
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


cdef void index_walk(
    Chain chain, Entry entry, StickyPartitioner partitioner, int64_t max_body, uint16_t retry_code, Walk *walk,
    Scratch *scratch
) noexcept nogil:
    cdef uint64_t payload_at = entry_payload_at(entry)
    cdef uint64_t words_at = entry_words_at(entry)
    cdef int64_t left = entry.payload_bytes
    cdef int64_t offset = 0, here, body
    cdef uint32_t i, count = entry.count
    cdef uint32_t partition
    cdef uint16_t *word
    cdef uint16_t code
    cdef Window words, bytes
    cdef Record r
    cdef Ref *ref
    cdef Parse status = PARSE_OK
    memset(&words, 0, sizeof(words))
    memset(&bytes, 0, sizeof(bytes))
    for i in range(count):
        if words_at >= words.end and not chain.window(words_at, &words):
            walk.page_missing = True
            return
        word = <uint16_t *> (words.bytes + (words_at - words.begin))
        words_at += 2
        if status == PARSE_OK and left > 0:
            while payload_at + offset >= bytes.end:
                if not chain.window(payload_at + offset, &bytes):
                    walk.page_missing = True
                    return
            here = min(left, <int64_t> (bytes.end - payload_at) - offset)
            status = parse_record(bytes.bytes + (payload_at + offset - bytes.begin), here, &r)
            if status == PARSE_NEED_MORE:
                status = PARSE_MALFORMED if here == left else parse_across(
                    chain, payload_at + offset, left, &r, scratch
                )
                if status == PARSE_NEED_MORE:
                    walk.out_of_memory = True
                    return
        else:
            # From the first unreadable record on nobody knows where one begins.
            status = PARSE_MALFORMED
        code = word[0]
        if retry_code == WORD_DONE:
            # Only what has its place or its failure already; the rest waits for the topic's partitions.
            if code == WORD_UNPARTITIONED:
                code = WORD_DONE
        elif retry_code:
            # A look at the records of one word only: everything else has its place already.
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
            code = choose_partition(&r, partitioner, body, max_body)
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
            if r.has_timestamp:
                if walk.timestamps == NULL:
                    walk.timestamps = <int64_t *> malloc(count * sizeof(int64_t))
                    if walk.timestamps == NULL:
                        walk.out_of_memory = True
                        return
                    fill_timestamps(walk.timestamps, 0, walk.ref_count - 1, entry.base_timestamp_ms)
                walk.timestamps[walk.ref_count - 1] = r.timestamp_ms
            elif walk.timestamps != NULL:
                walk.timestamps[walk.ref_count - 1] = entry.base_timestamp_ms
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
    for i in range(walk.ref_count):
        to = partitioner.counts[walk.refs[i].partition]
        partitioner.counts[walk.refs[i].partition] = to + 1
        sorted_refs[to] = walk.refs[i]
        if sorted_timestamps != NULL:
            sorted_timestamps[to] = walk.timestamps[i]
    free(walk.refs)
    free(walk.timestamps)
    walk.refs = sorted_refs
    walk.timestamps = sorted_timestamps
    return True


def index(
    Chain chain not None,
    Entry entry not None,
    StickyPartitioner partitioner not None,
    max_request_bytes,
    uint16_t retry_code=0,
):
    cdef RecordBlock block
    cdef Walk walk
    cdef Scratch scratch
    cdef int64_t max_body = <int64_t> max_request_bytes - UPPER_BOUND_OVERHEAD
    cdef uint32_t i, start = 0, partition
    cdef bint grouped
    if entry.chain_id != chain.chain_id or chain.live.get(entry.position // LINE) is not entry:
        raise ValueError(f"{entry!r} is not a live entry of {chain!r}")
    memset(&walk, 0, sizeof(walk))
    walk.refs = <Ref *> malloc(entry.count * sizeof(Ref))
    if walk.refs == NULL:
        raise MemoryError()
    scratch = take_scratch()
    if entry.count >= NOGIL_RECORDS:
        with nogil:
            index_walk(chain, entry, partitioner, max_body, retry_code, &walk, &scratch)
            grouped = not walk.out_of_memory and not walk.page_missing and group_refs(partitioner, &walk)
    else:
        index_walk(chain, entry, partitioner, max_body, retry_code, &walk, &scratch)
        grouped = not walk.out_of_memory and not walk.page_missing and group_refs(partitioner, &walk)
    give_scratch(scratch)
    block = RecordBlock.__new__(RecordBlock)
    block.entry = entry
    block.chain = chain
    block.refs = walk.refs
    block.timestamps = walk.timestamps
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
        raise ValueError(f"a page of {entry!r} is not linked")
    if not grouped:
        raise MemoryError()
    return block
