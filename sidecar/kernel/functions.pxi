# Functions over words, checksums and atomics that Python calls directly.


cdef int check_failure_code(code) except -1:
    if not WORD_FAILED_MIN <= code < WORD_DONE:
        raise ValueError(f"{code!r} is not a failure word (0xFF00 to 0xFFFD)")
    return 0


cdef int check_member(Chain chain, Entry entry) except -1:
    if entry.chain is not chain or chain.left_of(entry.position) == 0:
        raise ValueError(f"{entry!r} is not a live entry of {chain!r}")
    return 0


cdef uint16_t *word_of(Chain chain, Entry entry, uint32_t record) noexcept:
    cdef Window window
    cdef uint64_t position = words_at(entry.position) + 2 * <uint64_t> record
    if not chain.window(position, &window):
        return NULL
    return <uint16_t *> (window.bytes + (position - window.begin))


def held_bytes(uint32_t count, uint32_t payload_bytes):
    return held_bytes_of(count, payload_bytes)


def mark_failed_done(Chain chain not None, Entry entry not None, indexes):
    cdef uint16_t *word
    cdef uint32_t settled = 0
    if chain.left_of(entry.position) == 0:
        return False
    check_member(chain, entry)
    for record in indexes:
        if not 0 <= record < entry.count:
            raise ValueError(f"record {record} of {entry.count}")
        word = word_of(chain, entry, record)
        if word != NULL and WORD_FAILED_MIN <= word[0] < WORD_DONE:
            word[0] = WORD_DONE
            stored(AT_DONE_WORD)
            settled += 1
    return chain.settle(entry.position, settled)


def fail_remaining(Chain chain not None, Entry entry not None, code):
    cdef list failed = []
    cdef uint16_t *word
    cdef uint32_t i
    check_failure_code(code)
    check_member(chain, entry)
    for i in range(entry.count):
        word = word_of(chain, entry, i)
        if word != NULL and word[0] == WORD_UNPARTITIONED:
            word[0] = code
            stored(AT_FAILED_WORD)
            failed.append(i)
    return failed


def fail_records(Chain chain not None, Entry entry not None, indexes, code):
    cdef uint16_t *word
    check_failure_code(code)
    check_member(chain, entry)
    for record in indexes:
        if not 0 <= record < entry.count:
            raise ValueError(f"record {record} of {entry.count}")
        word = word_of(chain, entry, record)
        if word != NULL and (word[0] < WORD_FAILED_MIN or word[0] == WORD_UNPARTITIONED):
            word[0] = code
            stored(AT_FAILED_WORD)


def entry_words(Chain chain not None, Entry entry not None):
    cdef uint16_t *word
    cdef uint32_t i
    check_member(chain, entry)
    words = []
    for i in range(entry.count):
        word = word_of(chain, entry, i)
        words.append(word[0] if word != NULL else WORD_DONE)
    return words


def entry_payload(Chain chain not None, Entry entry not None):
    cdef bytes payload
    check_member(chain, entry)
    payload = PyBytes_FromStringAndSize(NULL, entry.payload_bytes)
    if not chain.copy_out(payload_at(entry.position, entry.count), <uint8_t *> PyBytes_AS_STRING(payload), entry.payload_bytes):
        raise ValueError(f"a page of {entry!r} is gone")
    return payload


def write_batch_header(out, records_bytes, *, producer_id, epoch, base_sequence, attributes, count,
                       first_timestamp_ms, max_timestamp_ms):
    cdef HeldBuffer buffer = hold(out, True)
    cdef int64_t total = <int64_t> records_bytes + BATCH_HEADER
    if records_bytes < 0 or buffer.view.len < total:
        raise ValueError(f"a batch of {total} bytes does not fit into {buffer.view.len}")
    put_batch_header(
        <uint8_t *> buffer.view.buf, total, producer_id, epoch, base_sequence, attributes, count,
        first_timestamp_ms, max_timestamp_ms
    )
    return total


def murmur2(data):
    cdef HeldBuffer buffer = hold(data, False)
    return <int32_t> murmur2_of(<const uint8_t *> buffer.view.buf, buffer.view.len)


def crc32c(data, crc=0):
    cdef HeldBuffer buffer = hold(data, False)
    return crc32c_of(crc, <const uint8_t *> buffer.view.buf, buffer.view.len)


def _crc32c_soft(data, crc=0):
    """CRC by the table, for the test that compares it with the CPU instruction."""
    cdef HeldBuffer buffer = hold(data, False)
    return crc32c_soft(crc, <const uint8_t *> buffer.view.buf, buffer.view.len)


cdef uint64_t *word_at(Py_buffer *view, Py_ssize_t offset) except NULL:
    if offset < 0 or offset & 7 or offset + 8 > view.len:
        raise ValueError(f"there is no aligned 8-byte word at {offset} of {view.len} bytes")
    if <uintptr_t> view.buf & 7:
        raise ValueError("the buffer does not begin at an 8-byte boundary")
    return <uint64_t *> (<uint8_t *> view.buf + offset)


# These take the buffer without a holder object: they run several times per batch.

def store_release_u64(buffer, Py_ssize_t offset, uint64_t value):
    cdef Py_buffer view
    PyObject_GetBuffer(buffer, &view, PyBUF_WRITABLE)
    try:
        store_release(word_at(&view, offset), value)
    finally:
        PyBuffer_Release(&view)


def load_acquire_u64(buffer, Py_ssize_t offset):
    cdef Py_buffer view
    PyObject_GetBuffer(buffer, &view, PyBUF_SIMPLE)
    try:
        return load_acquire(word_at(&view, offset))
    finally:
        PyBuffer_Release(&view)


def compare_and_swap_u64(buffer, Py_ssize_t offset, uint64_t expected, uint64_t desired):
    cdef Py_buffer view
    PyObject_GetBuffer(buffer, &view, PyBUF_WRITABLE)
    try:
        return compare_and_swap(word_at(&view, offset), expected, desired)
    finally:
        PyBuffer_Release(&view)


def fetch_add_u64(buffer, Py_ssize_t offset, amount):
    cdef Py_buffer view
    cdef uint64_t added = <uint64_t> (amount & 0xFFFFFFFFFFFFFFFF)
    PyObject_GetBuffer(buffer, &view, PyBUF_WRITABLE)
    try:
        return fetch_add(word_at(&view, offset), added)
    finally:
        PyBuffer_Release(&view)


def take_pages(owners, incarnation, want, hint=0):
    """Take free pages by compare-and-swap, searching from ``hint``: up to ``want`` of them."""
    cdef HeldBuffer buffer = hold(owners, True)
    cdef uint64_t *words = word_at(&buffer.view, 0)
    cdef uint32_t total = <uint32_t> (buffer.view.len // 8)
    cdef uint32_t i, left = want, page = hint
    cdef uint64_t taken = (<uint64_t> <uint32_t> incarnation << 32) | TAKEN
    cdef list pages = []
    if page >= total:
        page = 0
    for i in range(total):
        if left == 0:
            break
        if load_acquire(words + page) == 0 and compare_and_swap(words + page, 0, taken):
            stored(AT_PAGE_TAKEN)
            pages.append(page)
            left -= 1
        page = page + 1 if page + 1 < total else 0
    return pages


def give_pages(owners, incarnation, pages):
    """Free pages that this incarnation owns. Raises ValueError at the first one that it does not own, and frees no
    later one.
    """
    cdef HeldBuffer buffer = hold(owners, True)
    cdef uint64_t *words = word_at(&buffer.view, 0)
    cdef uint32_t total = <uint32_t> (buffer.view.len // 8)
    cdef uint32_t page
    cdef uint64_t owner
    for page in pages:
        if page >= total:
            raise ValueError(f"page {page} is not one of {total}")
        owner = load_acquire(words + page)
        if owner & 0xFFFFFFFF == 0 or owner >> 32 != <uint32_t> incarnation:
            raise ValueError(f"page {page} is not owned by incarnation {incarnation}: given back twice?")
        if not compare_and_swap(words + page, owner, 0):
            raise ValueError(f"page {page} changed its owner while it was given back")
        stored(AT_PAGE_GIVEN)
