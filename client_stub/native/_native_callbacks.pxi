# Runs the callbacks of one outcome in one loop, and reads an outcome's list of indexes.


def run_callbacks(SubmissionCore submission not None, RecordsOutcome outcome not None, news, failed):
    """Run the callbacks of the records of ``outcome`` whose bits are set in ``news``.

    ``failed()`` is called as the exception handler when a callback raises. Unless it raises as well, the remaining
    callbacks still run.
    """
    cdef bytes news_bytes = words_of(news)
    cdef bytes mask_bytes = news_bytes if outcome.mask == news else words_of(outcome.mask)
    cdef const char* news_data = PyBytes_AS_STRING(news_bytes)
    cdef const char* mask_data = PyBytes_AS_STRING(mask_bytes)
    cdef Py_ssize_t words = PyBytes_GET_SIZE(news_bytes) // 8, word
    cdef bint same = mask_bytes is news_bytes
    cdef list callbacks = submission.callbacks
    cdef object only = submission.callback
    cdef int64_t base_offset = outcome.base_offset
    cdef dict timestamps = outcome.timestamps
    cdef object error = outcome.error
    cdef object usual_time = outcome.timestamp_ms
    cdef object own_time
    cdef PyTypeObject* kind = <PyTypeObject*> RecordMetadata
    cdef PyObject* callback
    cdef PyObject* offset
    cdef PyObject* answer
    cdef PyObject* metadata = NULL
    cdef PyObject* arguments[3]
    cdef uint64_t news_word, mask_word
    cdef int64_t before = 0, record_offset
    cdef int bit
    arguments[0] = NULL
    arguments[1] = <PyObject*> error
    arguments[2] = <PyObject*> None
    try:
        for word in range(words):
            memcpy(&news_word, news_data + 8 * word, 8)
            memcpy(&mask_word, mask_data + 8 * word, 8)
            while news_word:
                bit = ks_lowest_bit(news_word)
                news_word &= news_word - 1
                callback = <PyObject*> only
                if callbacks is not None:
                    callback = PyList_GET_ITEM(callbacks, 64 * word + bit)
                if error is None:
                    if base_offset < 0:
                        record_offset = -1
                    elif same:
                        record_offset = base_offset + before
                        before += 1
                    else:
                        record_offset = base_offset + before + ks_bits(mask_word & ((<uint64_t> 1 << bit) - 1))
                    if callback == <PyObject*> None:
                        continue
                    own_time = usual_time
                    if timestamps is not None:
                        own_time = timestamps.get(64 * word + bit, usual_time)
                    if isinstance(<object> callback, MessageCore):
                        try:
                            (<MessageCore> callback).delivered(outcome.partition, record_offset, own_time)
                        except BaseException:
                            failed()
                        continue
                    offset = PyLong_FromLongLong(record_offset)
                    # Reuse the tuple if no callback has kept a reference to it, as zip() does.
                    if KS_MAY_REFILL_TUPLES and metadata != NULL and Py_REFCNT(metadata) == 1:
                        ks_refill(metadata, 2, offset)
                        if timestamps is not None:
                            Py_INCREF(<PyObject*> own_time)
                            ks_refill(metadata, 3, <PyObject*> own_time)
                    else:
                        Py_XDECREF(metadata)
                        metadata = NULL
                        metadata = ks_metadata(
                            kind,
                            <PyObject*> outcome.topic,
                            <PyObject*> outcome.partition,
                            offset,
                            <PyObject*> own_time,
                        )
                    arguments[2] = metadata
                elif callback == <PyObject*> None:
                    continue
                answer = PyObject_Vectorcall(callback, &arguments[1], 2 | PY_VECTORCALL_ARGUMENTS_OFFSET, NULL)
                if answer != NULL:
                    Py_DECREF(answer)
                else:
                    call_failed(failed)
            if not same:
                before += ks_bits(mask_word)
    finally:
        Py_XDECREF(metadata)


cdef int call_failed(failed) except -1:
    """Call ``failed`` as the handler of the exception that is set now. It may raise it again."""
    try:
        raise_set()
    except BaseException:
        failed()
    return 0


cdef int raise_set() except -1:
    return -1


cdef bytes words_of(mask):
    """The bits of a non-negative int as whole 8-byte words, little-endian."""
    return mask.to_bytes((mask.bit_length() + 63) // 64 * 8, "little")


def mask_of_indexes(bytes indexes not None):
    """An int whose set bits are the little-endian u16 ``indexes``."""
    cdef bytearray bits = bytearray(8192)
    cdef char* target = PyByteArray_AS_STRING(bits)
    cdef const uint8_t* data = <const uint8_t*> PyBytes_AS_STRING(indexes)
    cdef Py_ssize_t at
    cdef uint32_t index
    for at in range(0, PyBytes_GET_SIZE(indexes) - 1, 2):
        index = data[at] | <uint32_t> data[at + 1] << 8
        target[index >> 3] |= 1 << (index & 7)
    return int.from_bytes(bits, "little")
