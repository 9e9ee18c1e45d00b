# cython: language_level=3, cdivision=True
"""One msgpack record [key, value, headers?, partition?, timestamp_ms?], read with every length checked.

The bytes are untrusted: nothing is read beyond ``have``, and each number is checked against the bytes that are left.
"""

from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

from sidecar.kernel.varint cimport get16, get32, get64, varint_size

cdef enum Parse:
    PARSE_OK = 0
    PARSE_NEED_MORE = 1
    PARSE_MALFORMED = 2

cdef struct Record:
    const uint8_t *key
    const uint8_t *value
    const uint8_t *headers     # first header, after the array's own header
    int64_t key_bytes          # -1: null
    int64_t value_bytes
    int64_t headers_bytes      # encoded size of the headers section, its count included
    int64_t partition
    int64_t timestamp_ms
    int64_t extent             # bytes of the msgpack record; for NEED_MORE: the least that is needed
    uint32_t header_count
    bint has_partition
    bint has_timestamp
    bint timestamp_invalid


cdef inline Parse read_size(const uint8_t *p, int64_t have, int64_t *at, int64_t width, int64_t *size) noexcept nogil:
    """Read the length of ``width`` bytes (1, 2, 4) after the tag at ``at``, and move ``at`` past it."""
    cdef int64_t end = at[0] + 1 + width
    at[0] = end
    if end > have:
        return PARSE_NEED_MORE
    if width == 1:
        size[0] = p[end - 1]
    elif width == 2:
        size[0] = get16(p + end - 2)
    else:
        size[0] = get32(p + end - 4)
    return PARSE_OK


cdef inline Parse read_bin(const uint8_t *p, int64_t have, int64_t *at, int64_t *size, bint is_text) noexcept nogil:
    """Read bin or nil (``is_text``: str) at ``at``. Moves ``at`` to its first byte; ``size`` is -1 for nil."""
    cdef int64_t i = at[0]
    cdef uint8_t tag
    if i >= have:
        at[0] = i + 1
        return PARSE_NEED_MORE
    tag = p[i]
    if is_text:
        if 0xa0 <= tag <= 0xbf:
            size[0] = tag & 31
            at[0] = i + 1
            return PARSE_OK
        if not 0xd9 <= tag <= 0xdb:
            return PARSE_MALFORMED
        tag -= 0xd9 - 0xc4
    if 0xc4 <= tag <= 0xc6:
        return read_size(p, have, at, 1 << (tag - 0xc4), size)
    if tag != 0xc0:
        return PARSE_MALFORMED
    size[0] = -1
    at[0] = i + 1
    return PARSE_OK


cdef inline Parse read_int(const uint8_t *p, int64_t have, int64_t *at, int64_t *value, bint *is_nil) noexcept nogil:
    """Read any msgpack integer, or nil. An unsigned one beyond 63 bits reads as -1, which is outside of every valid
    range.
    """
    cdef int64_t i = at[0]
    cdef int64_t width
    cdef uint8_t tag
    cdef uint64_t number
    if i >= have:
        at[0] = i + 1
        return PARSE_NEED_MORE
    tag = p[i]
    is_nil[0] = False
    if tag == 0xc0:
        is_nil[0] = True
        at[0] = i + 1
        return PARSE_OK
    if tag <= 0x7f or tag >= 0xe0:
        value[0] = <signed char> tag
        at[0] = i + 1
        return PARSE_OK
    if not 0xcc <= tag <= 0xd3:
        return PARSE_MALFORMED
    width = 1 << ((tag - 0xcc) & 3)
    if i + 1 + width > have:
        at[0] = i + 1 + width
        return PARSE_NEED_MORE
    if width == 1:
        value[0] = p[i + 1] if tag == 0xcc else <signed char> p[i + 1]
    elif width == 2:
        value[0] = get16(p + i + 1) if tag == 0xcd else <short> get16(p + i + 1)
    elif width == 4:
        value[0] = get32(p + i + 1) if tag == 0xce else <int> get32(p + i + 1)
    else:
        number = get64(p + i + 1)
        value[0] = -1 if tag == 0xcf and number >> 63 else <int64_t> number
    at[0] = i + 1 + width
    return PARSE_OK


cdef inline Parse read_array(const uint8_t *p, int64_t have, int64_t *at, int64_t *count) noexcept nogil:
    """Read an array's header; nil gives -1."""
    cdef int64_t i = at[0]
    cdef uint8_t tag
    if i >= have:
        at[0] = i + 1
        return PARSE_NEED_MORE
    tag = p[i]
    if 0xdc <= tag <= 0xdd:
        return read_size(p, have, at, 2 << (tag - 0xdc), count)
    if 0x90 <= tag <= 0x9f:
        count[0] = tag & 15
    elif tag == 0xc0:
        count[0] = -1
    else:
        return PARSE_MALFORMED
    at[0] = i + 1
    return PARSE_OK


cdef inline Parse skip_headers(const uint8_t *p, int64_t have, int64_t *at, Record *r) noexcept nogil:
    """Skip nil or an array of [str, bin|nil], and note its encoded size."""
    cdef int64_t count = 0, pair = 0, size = 0, total, i
    cdef Parse status = read_array(p, have, at, &count)
    if status != PARSE_OK:
        return status
    r.headers = p + at[0]
    r.headers_bytes = 1
    r.header_count = 0
    if count <= 0:
        return PARSE_OK
    # Each header takes at least 3 bytes, so a count that cannot fit is refused before reading.
    if count > 0x2fffffff:
        return PARSE_MALFORMED
    total = varint_size(count)
    for i in range(count):
        status = read_array(p, have, at, &pair)
        if status != PARSE_OK:
            return status
        if pair != 2:
            return PARSE_MALFORMED
        status = read_bin(p, have, at, &size, True)
        if status != PARSE_OK:
            return status
        total += varint_size(size) + size
        at[0] += size
        if at[0] > have:
            return PARSE_NEED_MORE
        status = read_bin(p, have, at, &size, False)
        if status != PARSE_OK:
            return status
        total += varint_size(size)
        if size > 0:
            total += size
            at[0] += size
            if at[0] > have:
                return PARSE_NEED_MORE
    r.header_count = <uint32_t> count
    r.headers_bytes = total
    return PARSE_OK


cdef inline Parse parse_record(const uint8_t *p, int64_t have, Record *r) noexcept nogil:
    """Read the record that begins at ``p``; ``have`` bytes are readable there."""
    cdef int64_t at = 0, fields = 0, number = 0
    cdef bint is_nil = False
    cdef Parse status
    r.headers_bytes = 1
    r.header_count = 0
    r.has_partition = False
    r.has_timestamp = False
    r.timestamp_invalid = False
    # The common record, [bin8 key, bin8 value], is read without a call or a loop. Others are handled below.
    if have > 3 and p[0] == 0x92 and p[1] == 0xc4:
        at = 3 + <int64_t> p[2]
        if at + 2 <= have and p[at] == 0xc4 and at + 2 + <int64_t> p[at + 1] <= have:
            r.key = p + 3
            r.key_bytes = p[2]
            r.value = p + at + 2
            r.value_bytes = p[at + 1]
            r.extent = at + 2 + r.value_bytes
            return PARSE_OK
        at = 0
    status = read_array(p, have, &at, &fields)
    r.extent = at
    if status != PARSE_OK:
        return status
    if fields < 2 or fields > 5:
        return PARSE_MALFORMED
    status = read_bin(p, have, &at, &r.key_bytes, False)
    if status == PARSE_OK:
        r.key = p + at
        if r.key_bytes > 0:
            at += r.key_bytes
        status = read_bin(p, have, &at, &r.value_bytes, False)
    if status == PARSE_OK:
        r.value = p + at
        if r.value_bytes > 0:
            at += r.value_bytes
        if at > have:
            status = PARSE_NEED_MORE
        elif fields > 2:
            status = skip_headers(p, have, &at, r)
            if status == PARSE_OK and fields > 3:
                status = read_int(p, have, &at, &r.partition, &is_nil)
                r.has_partition = not is_nil
            if status == PARSE_OK and fields > 4:
                status = read_int(p, have, &at, &number, &is_nil)
                if not is_nil:
                    r.has_timestamp = True
                    r.timestamp_ms = number
                    r.timestamp_invalid = number < 0
    r.extent = at
    return status
