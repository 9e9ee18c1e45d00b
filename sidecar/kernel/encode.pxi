# The encode walk: v2 records made from the journal's msgpack, into a request buffer; and the words of a range.

cdef struct Slice:
    uint64_t position        # of the entry
    uint32_t start           # its first reference among the batch's own: the records before it
    uint32_t taken           # when its records were accepted, as tenths() has it

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
    """Encode one v2 record from its msgpack bytes (all of them at ``p``). NULL if they differ from the indexed ones."""
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
    Chain chain, uint64_t entry, const Ref *refs, const int64_t *timestamps, uint32_t start, uint32_t stop,
    int64_t first_timestamp_ms, uint8_t *out, const uint8_t *out_end, Scratch *scratch
) noexcept nogil:
    """Encode the records ``start`` to ``stop`` of a batch, all of one entry. NULL if they differ from the indexed
    ones.
    """
    cdef EntryHeader *header
    cdef uint64_t payload_begin, position
    cdef int64_t delta
    cdef const uint8_t *pages_end = chain.pages + chain.pages_total * chain.page_bytes
    cdef const Ref *ref
    cdef const uint8_t *source
    cdef uint8_t *next_out
    cdef Window window
    cdef uint32_t i
    if chain.left_of(entry) == 0:
        return NULL
    header = chain.header_at(entry)
    payload_begin = payload_at(entry, header.count)
    delta = header.base_timestamp_ms - first_timestamp_ms
    memset(&window, 0, sizeof(window))

    for i in range(start, stop):
        ref = refs + i
        position = payload_begin + ref.offset
        if position >= window.end and not chain.window(position, &window):
            return NULL
        if timestamps != NULL:
            delta = timestamps[i] - first_timestamp_ms
        if position + ref.extent <= window.end:
            # References ascend: the record 8 places ahead is likely on the same page and not in a cache yet.
            if i + 8 < stop and payload_begin + ref[8].offset < window.end:
                source = window.bytes + (payload_begin + ref[8].offset - window.begin)
                prefetch(source)
                prefetch(source + LINE)
            source = window.bytes + (position - window.begin)
            next_out = encode_plain(source, pages_end, ref, delta, i, out, out_end)
            if next_out == NULL:
                next_out = encode_record(source, pages_end, ref, delta, i, out, out_end)
        else:
            if not scratch_reserve(scratch, ref.extent) or not chain.copy_out(position, scratch.bytes, ref.extent):
                return NULL
            next_out = encode_record(
                scratch.bytes, scratch.bytes + ref.extent, ref, delta, i, out, out_end
            )
        if next_out == NULL:
            return NULL
        out = next_out
    return out


cdef uint32_t mark_slice(
    Chain chain, uint64_t entry, const Ref *refs, uint32_t start, uint32_t stop, uint16_t value
) noexcept nogil:
    """Store words of one entry, except those that are done. Returns how many were changed."""
    cdef uint64_t position
    cdef uint32_t i, changed = 0
    cdef uint16_t *word
    cdef Window window
    memset(&window, 0, sizeof(window))
    for i in range(start, stop):
        position = words_at(entry) + 2 * <uint64_t> refs[i].index
        if (position >= window.end or position < window.begin) and not chain.window(position, &window):
            return changed
        word = <uint16_t *> (window.bytes + (position - window.begin))
        if word[0] != WORD_DONE:
            word[0] = value
            stored(AT_DONE_WORD if value == WORD_DONE else AT_FAILED_WORD)
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
