# BatchRecords: the records of one ProducerBatch, and the encode walk that makes their v2 bytes.

cdef struct Slice:
    uint32_t start           # references of one block
    uint32_t stop
    uint32_t before          # records of earlier slices

cdef extern from *:
    """
    #define ks_likely(x) __builtin_expect(!!(x), 1)
    typedef uint8_t ks_v16 __attribute__((vector_size(16), aligned(1), may_alias));
    /* Small copies in steps of 16 and 32 bytes: both sides must have room for the last step (COPY_SLACK). */
    static inline void ks_copy_steps(uint8_t *out, const uint8_t *in, int64_t n) {
        *(ks_v16 *)out = *(const ks_v16 *)in;
        for (int64_t done = 16; done < n; done += 32) {
            ks_v16 a = *(const ks_v16 *)(in + done), b = *(const ks_v16 *)(in + done + 16);
            *(ks_v16 *)(out + done) = a;
            *(ks_v16 *)(out + done + 16) = b;
        }
    }
    /* Lengths below 8,192 in one or two bytes without a loop; the third byte written is overwritten by what follows. */
    static inline uint8_t *ks_put_length(uint8_t *p, uint64_t n) {
        if (ks_likely(n < 64)) { *p = (uint8_t)(n << 1); return p + 1; }
        if (ks_likely(n < 8192)) {
            uint16_t two = (uint16_t)((((n << 1) & 0x7f) | 0x80) | ((n >> 6) << 8));
            __builtin_memcpy(p, &two, 2);
            return p + 2;
        }
        return ks_put_varint(p, (int64_t)n);
    }
    static inline void ks_prefetch(const void *p) { __builtin_prefetch(p); }
    """
    void copy_steps "ks_copy_steps"(uint8_t *out, const uint8_t *source, int64_t n) noexcept nogil
    uint8_t *put_length "ks_put_length"(uint8_t *p, uint64_t n) noexcept nogil
    void prefetch "ks_prefetch"(const void *p) noexcept nogil
    bint likely "ks_likely"(bint condition) noexcept nogil

cdef enum:
    COPY_SLACK = 32
    STEPS_MAX = 1024         # above it memcpy is faster


cdef inline uint8_t *copy_bytes(
    uint8_t *out, const uint8_t *out_end, const uint8_t *source, const uint8_t *source_end, int64_t n
) noexcept nogil:
    if n <= STEPS_MAX and out + n + COPY_SLACK <= out_end and source + n + COPY_SLACK <= source_end:
        copy_steps(out, source, n)
    else:
        memcpy(out, source, n)
    return out + n


cdef inline uint8_t *encode_plain(
    const uint8_t *p, const uint8_t *readable_end, const Ref *ref, int64_t timestamp_delta, int64_t offset_delta,
    uint8_t *out, const uint8_t *out_end
) noexcept nogil:
    """The common record, [bin8 or nil key, bin8 or bin16 value], with room around it for copies in steps.

    NULL: not of this shape, or too near an end; :func:`encode_record` takes all.
    """
    cdef int64_t size = 1 + varint_size(timestamp_delta) + varint_size(offset_delta) + ref.body_bytes
    cdef uint64_t key_bytes, value_bytes
    cdef const uint8_t *value
    if out + size + 3 * COPY_SLACK > out_end or p + ref.extent + COPY_SLACK > readable_end or ref.extent > STEPS_MAX:
        return NULL
    if ref.extent < 3 or p[0] != 0x92:
        return NULL
    if likely(p[1] == 0xc4):
        key_bytes = p[2]
        value = p + 3 + key_bytes
    elif p[1] == 0xc0:
        key_bytes = 0
        value = p + 2
    else:
        return NULL
    if value + 3 > p + ref.extent:
        return NULL
    if likely(value[0] == 0xc4):
        value_bytes = value[1]
        value += 2
    elif value[0] == 0xc5:
        value_bytes = get16(value + 1)
        value += 3
    else:
        return NULL
    if value + value_bytes != p + ref.extent:
        return NULL
    out = put_length(out, size)
    out[0] = 0
    if likely(timestamp_delta == 0):
        out[1] = 0
        out += 2
    else:
        out = put_varint(out + 1, timestamp_delta)
    out = put_length(out, offset_delta)
    if likely(p[1] == 0xc4):
        out = put_length(out, key_bytes)
        copy_steps(out, p + 3, key_bytes)
        out += key_bytes
    else:
        out[0] = 1
        out += 1
    out = put_length(out, value_bytes)
    copy_steps(out, value, value_bytes)
    out += value_bytes
    out[0] = 0
    return out + 1


cdef uint8_t *encode_record(
    const uint8_t *p, const uint8_t *readable_end, const Ref *ref, int64_t timestamp_delta, int64_t offset_delta,
    uint8_t *out, const uint8_t *out_end
) noexcept nogil:
    """One v2 record from its msgpack bytes (all of them at ``p``); NULL when they are not what was indexed."""
    cdef int64_t at, have = ref.extent, size, body
    cdef int64_t headers = -1, pair = 0, fields = 0, i
    cdef uint8_t *body_start
    size = 1 + varint_size(timestamp_delta) + varint_size(offset_delta) + ref.body_bytes
    if out + varint_size(size) + size > out_end:
        return NULL
    out = put_varint(out, size)
    out[0] = 0
    out = put_varint(out + 1, timestamp_delta)
    out = put_varint(out, offset_delta)
    body_start = out
    body = ref.body_bytes
    at = 0
    if read_array(p, have, &at, &fields) != PARSE_OK or fields < 2:
        return NULL
    for i in range(2):
        if read_bin(p, have, &at, &size, False) != PARSE_OK:
            return NULL
        if size > have - at or varint_size(size) + (size if size > 0 else 0) > body - (out - body_start):
            return NULL
        out = put_varint(out, size)
        if size > 0:
            out = copy_bytes(out, out_end, p + at, readable_end, size)
            at += size
    if fields > 2 and (read_array(p, have, &at, &headers) != PARSE_OK):
        return NULL
    if headers <= 0:
        if body - (out - body_start) != 1:
            return NULL
        out[0] = 0
        return out + 1
    if body - (out - body_start) < varint_size(headers):
        return NULL
    out = put_varint(out, headers)
    for i in range(2 * headers):
        if i & 1 == 0 and (read_array(p, have, &at, &pair) != PARSE_OK or pair != 2):
            return NULL
        if read_bin(p, have, &at, &size, i & 1 == 0) != PARSE_OK:
            return NULL
        if size > have - at or varint_size(size) + (size if size > 0 else 0) > body - (out - body_start):
            return NULL
        out = put_varint(out, size)
        if size > 0:
            out = copy_bytes(out, out_end, p + at, readable_end, size)
            at += size
    return out if out - body_start == body else NULL


cdef uint8_t *encode_slice(
    RecordBlock block, Chain chain, Slice piece, int64_t first_timestamp_ms,
    uint8_t *out, const uint8_t *out_end, Scratch *scratch
) noexcept nogil:
    cdef uint64_t payload_at = entry_payload_at(block.entry)
    cdef uint64_t position
    cdef int64_t delta = block.entry.base_timestamp_ms - first_timestamp_ms
    cdef int64_t offset_delta = piece.before
    cdef const uint8_t *pages_end = chain.pages + chain.pages_total * chain.page_bytes
    cdef const Ref *ref
    cdef const uint8_t *source
    cdef uint8_t *next_out
    cdef Window window
    cdef uint32_t i
    memset(&window, 0, sizeof(window))

    for i in range(piece.start, piece.stop):
        ref = block.refs + i
        position = payload_at + ref.offset
        if position >= window.end and not chain.window(position, &window):
            return NULL
        if block.timestamps != NULL:
            delta = block.timestamps[i] - first_timestamp_ms
        if position + ref.extent <= window.end:
            # References ascend: what comes 8 records later is likely on the same page and not yet in a cache.
            if i + 8 < piece.stop and payload_at + ref[8].offset < window.end:
                source = window.bytes + (payload_at + ref[8].offset - window.begin)
                prefetch(source)
                prefetch(source + LINE)
            source = window.bytes + (position - window.begin)
            next_out = encode_plain(source, pages_end, ref, delta, offset_delta, out, out_end)
            if next_out == NULL:
                next_out = encode_record(source, pages_end, ref, delta, offset_delta, out, out_end)
        else:
            if not scratch_reserve(scratch, ref.extent) or not chain.copy_out(position, scratch.bytes, ref.extent):
                return NULL
            next_out = encode_record(
                scratch.bytes, scratch.bytes + ref.extent, ref, delta, offset_delta, out, out_end
            )
        if next_out == NULL:
            return NULL
        out = next_out
        offset_delta += 1
    return out


cdef uint32_t mark_slice(RecordBlock block, uint32_t start, uint32_t stop, uint16_t value) noexcept nogil:
    """Store words, except those done already; returns how many were changed."""
    cdef uint64_t words_at = entry_words_at(block.entry)
    cdef uint64_t position
    cdef uint32_t i, changed = 0
    cdef uint16_t *word
    cdef Window window
    memset(&window, 0, sizeof(window))
    for i in range(start, stop):
        position = words_at + 2 * <uint64_t> block.refs[i].index
        if position >= window.end and not block.chain.window(position, &window):
            return changed
        word = <uint16_t *> (window.bytes + (position - window.begin))
        if word[0] != WORD_DONE:
            word[0] = value
            changed += 1
    return changed


cdef int put_batch_header(
    uint8_t *out, uint64_t total, int64_t producer_id, int16_t epoch, int32_t base_sequence, int16_t attributes,
    int32_t count, int64_t first_timestamp_ms, int64_t max_timestamp_ms
) noexcept nogil:
    put64(out, 0)
    put32(out + 8, <uint32_t> (total - 12))
    put32(out + 12, 0xFFFFFFFFu)
    out[16] = 2
    put16(out + 21, <uint16_t> attributes)
    put32(out + 23, <uint32_t> (count - 1))
    put64(out + 27, <uint64_t> first_timestamp_ms)
    put64(out + 35, <uint64_t> max_timestamp_ms)
    put64(out + 43, <uint64_t> producer_id)
    put16(out + 51, <uint16_t> epoch)
    put32(out + 53, <uint32_t> base_sequence)
    put32(out + 57, <uint32_t> count)
    put32(out + 17, crc32c_of(0, out + 21, total - 21))
    return 0


@cython.final
@cython.freelist(64)
cdef class BatchRecords:
    cdef readonly uint32_t count
    cdef readonly int64_t first_timestamp_ms
    cdef readonly int64_t max_timestamp_ms
    cdef int64_t records_bytes
    cdef list blocks
    cdef Slice *slices
    cdef Py_ssize_t slice_capacity
    cdef Py_ssize_t slice_total
    cdef bint done

    def __cinit__(self):
        self.blocks = []
        self.slices = NULL

    def __dealloc__(self):
        free(self.slices)

    @property
    def size_bytes(self):
        return BATCH_HEADER + self.records_bytes

    @property
    def slice_count(self):
        return self.slice_total

    cdef RecordBlock block_at(self, Py_ssize_t slice_index):
        if slice_index < 0 or slice_index >= self.slice_total:
            raise IndexError(f"slice {slice_index} of {self.slice_total}")
        return <RecordBlock> self.blocks[slice_index]

    def slice_entry(self, slice_index):
        return self.block_at(slice_index).entry

    def slice_records(self, slice_index):
        self.block_at(slice_index)
        return self.slices[<Py_ssize_t> slice_index].stop - self.slices[<Py_ssize_t> slice_index].start

    @property
    def first_cursor(self):
        cdef RecordBlock block = self.block_at(0)
        return block.entry.position // LINE, block.refs[self.slices[0].start].index

    @property
    def last_cursor(self):
        cdef RecordBlock block = self.block_at(max(self.slice_total - 1, 0))
        return block.entry.position // LINE, block.refs[self.slices[self.slice_total - 1].stop - 1].index

    def try_append(self, RecordBlock block not None, start, stop, limit_bytes):
        cdef uint32_t begin, i, end
        cdef int64_t limit = min(<object> limit_bytes, 0x7fffffff) - BATCH_HEADER
        if not 0 <= start <= stop <= block.ref_count:
            raise ValueError(f"references {start}:{stop} of a block with {block.ref_count}")
        begin = start
        end = stop
        i = self.take(block, begin, end, limit)
        if i > begin:
            self.add_slice(block, begin, i)
        return i - begin

    cdef uint32_t take(self, RecordBlock block, uint32_t begin, uint32_t end, int64_t limit) noexcept:
        """How far the references fit; sizes, count and timestamps follow."""
        cdef int64_t total = self.records_bytes, size, timestamp = block.entry.base_timestamp_ms
        cdef int64_t maximum = self.max_timestamp_ms, delta
        cdef uint32_t i = begin, count = self.count
        if begin < end and count == 0:
            self.first_timestamp_ms = block_timestamp(block, begin)
            maximum = self.first_timestamp_ms
        delta = varint_size(timestamp - self.first_timestamp_ms)
        while i < end and count < 0x7fffffff:
            if block.timestamps != NULL:
                timestamp = block.timestamps[i]
                delta = varint_size(timestamp - self.first_timestamp_ms)
            size = 1 + delta + varint_size(count) + block.refs[i].body_bytes
            size += varint_size(size)
            if total + size > limit and count:
                break
            total += size
            maximum = max(maximum, timestamp)
            count += 1
            i += 1
        self.records_bytes = total
        self.max_timestamp_ms = maximum
        self.count = count
        return i

    cdef int add_slice(self, RecordBlock block, uint32_t start, uint32_t stop) except -1:
        cdef Slice *grown
        cdef Slice *last
        cdef Py_ssize_t capacity
        if self.slice_total and self.blocks[self.slice_total - 1] is block:
            last = self.slices + self.slice_total - 1
            if last.stop == start:
                last.stop = stop
                return 0
        if self.slice_total == self.slice_capacity:
            capacity = max(4, 2 * self.slice_capacity)
            grown = <Slice *> realloc(self.slices, capacity * sizeof(Slice))
            if grown == NULL:
                raise MemoryError()
            self.slices = grown
            self.slice_capacity = capacity
        self.blocks.append(block)
        self.slices[self.slice_total].start = start
        self.slices[self.slice_total].stop = stop
        self.slices[self.slice_total].before = self.count - (stop - start)
        self.slice_total += 1
        return 0

    cdef int encode(self, uint8_t *out, int64_t room) except -1:
        """The records section, exactly ``records_bytes``."""
        cdef Scratch scratch
        cdef Py_ssize_t i = 0
        cdef RecordBlock block
        cdef Chain chain
        cdef Slice piece
        cdef int64_t first = self.first_timestamp_ms
        cdef uint8_t *at = out
        cdef uint8_t *end = out + self.records_bytes
        if self.count == 0:
            raise ValueError("an empty batch has no bytes")
        if room < self.records_bytes:
            raise ValueError(f"{self.records_bytes} bytes of records do not fit into {room}")
        scratch = take_scratch()
        for i in range(self.slice_total):
            block = <RecordBlock> self.blocks[i]
            chain = block.chain
            piece = self.slices[i]
            if piece.stop - piece.start >= NOGIL_RECORDS:
                with nogil:
                    at = encode_slice(block, chain, piece, first, at, end, &scratch)
            else:
                at = encode_slice(block, chain, piece, first, at, end, &scratch)
            if at == NULL:
                break
        give_scratch(scratch)
        if at != end:
            raise ValueError(f"records of slice {i} are not in the journal as they were indexed (ENCODE_MISMATCH)")
        return 0

    def encode_into(self, out, producer_id, epoch, base_sequence, attributes=0):
        cdef HeldBuffer buffer = hold(out, True)
        cdef uint8_t *start = <uint8_t *> buffer.view.buf
        if buffer.view.len < BATCH_HEADER + self.records_bytes:
            raise ValueError(f"a batch of {self.size_bytes} bytes does not fit into {buffer.view.len}")
        self.encode(start + BATCH_HEADER, buffer.view.len - BATCH_HEADER)
        put_batch_header(
            start, BATCH_HEADER + self.records_bytes, producer_id, epoch, base_sequence, attributes, self.count,
            self.first_timestamp_ms, self.max_timestamp_ms
        )
        return BATCH_HEADER + self.records_bytes

    def encode_records_into(self, out):
        cdef HeldBuffer buffer = hold(out, True)
        self.encode(<uint8_t *> buffer.view.buf, buffer.view.len)
        return self.records_bytes

    def split(self):
        cdef BatchRecords first = BatchRecords(), second = BatchRecords()
        cdef uint32_t half = self.count - self.count // 2, cut
        cdef Py_ssize_t i = 0
        if self.count < 2:
            raise ValueError(f"a batch of {self.count} records cannot be split")
        for i in range(self.slice_total):
            cut = self.slices[i].start + min(
                self.slices[i].stop - self.slices[i].start, half - min(half, self.slices[i].before)
            )
            first.try_append(self.blocks[i], self.slices[i].start, cut, 0x7fffffff)
            second.try_append(self.blocks[i], cut, self.slices[i].stop, 0x7fffffff)
        return first, second

    def select(self, indexes):
        cdef BatchRecords chosen = BatchRecords()
        cdef Py_ssize_t i = 0
        cdef int64_t last = -1, position
        cdef uint32_t ref
        for position in indexes:
            if position <= last or position >= self.count:
                raise ValueError(f"record {position} after {last} of {self.count}: ascending positions are needed")
            last = position
            while position >= self.slices[i].before + (self.slices[i].stop - self.slices[i].start):
                i += 1
            ref = self.slices[i].start + <uint32_t> (position - self.slices[i].before)
            chosen.try_append(self.blocks[i], ref, ref + 1, 0x7fffffff)
        return chosen

    def entries(self):
        cdef list found = []
        cdef Py_ssize_t i = 0
        for i in range(self.slice_total):
            found.append(((<RecordBlock> self.blocks[i]).entry, self.slices[i].stop - self.slices[i].start))
        return found

    def outcomes(self, slice_index, *, number, kind, persistence, code, partition, base_offset, append_time_ms,
                 text=b""):
        cdef RecordBlock block = self.block_at(slice_index)
        cdef Slice piece = self.slices[<Py_ssize_t> slice_index]
        cdef uint32_t records = piece.stop - piece.start
        cdef uint32_t first = block.refs[piece.start].index
        cdef uint32_t last = block.refs[piece.stop - 1].index
        cdef uint32_t shape, bit, i
        cdef Py_ssize_t index_bytes = 0, text_bytes = len(text), length
        cdef int64_t offset = base_offset
        cdef bytes outcome
        cdef uint8_t *out
        if not block.entry.flags & WANT_INDEXES:
            shape = 3
        elif last - first + 1 == records:
            shape = 0
        elif (last - first) // 8 + 1 <= 2 * records:
            shape = 1
            index_bytes = (last - first) // 8 + 1
        else:
            shape = 2
            index_bytes = 2 * records
        if text_bytes > 0xFFFF:
            raise ValueError(f"an outcome's text has at most 65535 bytes, not {text_bytes}")
        length = (OUTCOME_HEADER + index_bytes + text_bytes + 7) & ~7
        outcome = PyBytes_FromStringAndSize(NULL, length)
        out = <uint8_t *> PyBytes_AS_STRING(outcome)
        memset(out, 0, length)
        (<uint32_t *> out)[0] = <uint32_t> length
        out[4] = kind
        out[5] = persistence
        out[6] = <uint8_t> shape
        (<uint64_t *> (out + 8))[0] = number
        (<uint32_t *> (out + 16))[0] = block.entry.stream
        (<int32_t *> (out + 20))[0] = code
        (<uint64_t *> (out + 24))[0] = block.entry.seq
        (<uint32_t *> (out + 32))[0] = partition
        (<uint32_t *> (out + 36))[0] = first
        (<uint32_t *> (out + 40))[0] = records
        (<uint16_t *> (out + 44))[0] = <uint16_t> index_bytes
        (<uint16_t *> (out + 46))[0] = <uint16_t> text_bytes
        (<int64_t *> (out + 48))[0] = offset + piece.before if offset >= 0 else offset
        (<int64_t *> (out + 56))[0] = append_time_ms
        out += OUTCOME_HEADER
        if shape == 1:
            for i in range(piece.start, piece.stop):
                bit = block.refs[i].index - first
                out[bit >> 3] |= 1 << (bit & 7)
        elif shape == 2:
            for i in range(piece.start, piece.stop):
                (<uint16_t *> out)[i - piece.start] = block.refs[i].index
        memcpy(out + index_bytes, PyBytes_AS_STRING(text), text_bytes)
        return outcome

    def mark_failed(self, code):
        cdef Py_ssize_t i = 0
        check_failure_code(code)
        for i in range(self.slice_total):
            mark_slice(<RecordBlock> self.blocks[i], self.slices[i].start, self.slices[i].stop, code)

    def mark_done(self):
        cdef Py_ssize_t i = 0
        cdef RecordBlock block
        cdef uint32_t finished = 0
        for i in range(self.slice_total):
            block = <RecordBlock> self.blocks[i]
            if block.entry.remaining == 0:
                continue
            finished += block.chain.settle(
                block.entry, mark_slice(block, self.slices[i].start, self.slices[i].stop, WORD_DONE)
            )
        return finished

    def __repr__(self):
        return f"<BatchRecords {self.count} records, {self.size_bytes} bytes, {self.slice_total} slices>"
