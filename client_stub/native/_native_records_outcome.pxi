# RecordsOutcome: an outcome, looked up record by record.


@cython.final
cdef class RecordsOutcome:
    """The outcome of the records whose bits are set in ``mask``."""

    cdef readonly object mask
    cdef readonly object topic
    cdef readonly object partition
    cdef readonly int64_t base_offset
    cdef readonly object timestamp_ms
    cdef readonly dict timestamps
    cdef readonly object error
    cdef bytes words            # made at the first look-up: most outcomes are never looked up
    cdef bytearray before       # a u32 per word: how many members the words before it have

    def __init__(self, mask, topic, partition, int64_t base_offset, timestamp_ms, dict timestamps, error):
        self.mask = mask
        self.topic = topic
        self.partition = partition
        self.base_offset = base_offset
        self.timestamp_ms = timestamp_ms
        self.timestamps = timestamps
        self.error = error

    cdef int count(self) except -1:
        cdef bytes words = words_of(self.mask)
        cdef Py_ssize_t word, count = PyBytes_GET_SIZE(words) // 8
        cdef bytearray before = bytearray(4 * count)
        cdef uint32_t found = 0
        cdef uint64_t bits
        for word in range(count):
            (<uint32_t*> PyByteArray_AS_STRING(before))[word] = found
            memcpy(&bits, PyBytes_AS_STRING(words) + 8 * word, 8)
            found += ks_bits(bits)
        self.before = before
        self.words = words  # set last: from now on other calls read it
        return 0

    cdef Py_ssize_t rank_of(self, Py_ssize_t index) except -2:
        cdef Py_ssize_t word = index >> 6
        cdef uint64_t bits, bit = <uint64_t> 1 << (index & 63)
        if self.words is None:
            self.count()
        if index < 0 or 8 * word >= PyBytes_GET_SIZE(self.words):
            return -1
        memcpy(&bits, PyBytes_AS_STRING(self.words) + 8 * word, 8)
        if not bits & bit:
            return -1
        return (<uint32_t*> PyByteArray_AS_STRING(self.before))[word] + ks_bits(bits & (bit - 1))

    cdef object metadata_of(self, Py_ssize_t index, Py_ssize_t rank):
        cdef object timestamp_ms = self.timestamp_ms
        cdef PyObject* made
        if self.timestamps is not None:
            timestamp_ms = self.timestamps.get(index, timestamp_ms)
        made = ks_metadata(
            <PyTypeObject*> RecordMetadata,
            <PyObject*> self.topic,
            <PyObject*> self.partition,
            PyLong_FromLongLong(self.base_offset + rank if self.base_offset >= 0 else -1),
            <PyObject*> timestamp_ms,
        )
        metadata = <object> made
        Py_DECREF(made)
        return metadata

    def rank(self, Py_ssize_t index):
        """How many of this outcome's records come before ``index``; -1 when the record is none of them."""
        return self.rank_of(index)

    def metadata(self, Py_ssize_t index, Py_ssize_t rank):
        """The metadata of the record ``index``, which ``rank`` records of this outcome come before."""
        return self.metadata_of(index, rank)
