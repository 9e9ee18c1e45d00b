# Outcomes, as wire.py draws them: the compiled twin of its unpack_outcomes().

cdef struct OutcomeHead:
    uint32_t length
    uint8_t kind
    uint8_t persistence
    uint8_t shape
    uint8_t zero
    uint64_t number
    uint32_t stream
    int32_t code
    uint64_t seq
    uint32_t partition
    uint32_t first_index
    uint32_t count
    uint16_t index_bytes
    uint16_t text_bytes
    int64_t base_offset
    int64_t append_time_ms

assert sizeof(OutcomeHead) == OUTCOME_HEADER_BYTES
cdef object make_tuple = tuple.__new__


def unpack_outcomes(buffer):
    """Unpack every outcome in ``buffer``. Raises ValueError when their lengths do not add up."""
    cdef Py_buffer held
    cdef const uint8_t *data
    cdef OutcomeHead head
    cdef Py_ssize_t position = 0, size, body, end
    cdef list outcomes = []
    PyObject_GetBuffer(buffer, &held, PyBUF_SIMPLE)
    try:
        data, size = <const uint8_t *> held.buf, held.len
        while position < size:
            if size - position < <Py_ssize_t> sizeof(OutcomeHead):
                raise ValueError(f"outcome cut short at byte {position} of {size}")
            memcpy(&head, data + position, sizeof(OutcomeHead))
            body = position + <Py_ssize_t> sizeof(OutcomeHead)
            end = body + head.index_bytes + head.text_bytes
            if head.length % 8 or end > position + head.length or position + head.length > size:
                raise ValueError(f"outcome at byte {position} claims {head.length} bytes of {size}")
            outcomes.append(make_tuple(Outcome, (
                head.kind, head.persistence, head.shape, head.number, head.stream, head.code, head.seq,
                head.partition, head.first_index, head.count, head.base_offset, head.append_time_ms,
                PyBytes_FromStringAndSize(<char *> data + body, head.index_bytes),
                (<bytes> data[body + head.index_bytes:end]).decode("utf-8", "replace") if head.text_bytes else "",
            )))
            position += head.length
    finally:
        PyBuffer_Release(&held)
    return outcomes
