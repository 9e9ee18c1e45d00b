# SubmissionCore, PartCore, OpenStream, Delivery, EngineCore, ProducerCore: the way from the arguments of send() to a packed record
# and its future.


cdef class OutboxCore


cdef inline bint is_plain_wait(PyObject* timeout) noexcept:
    """Whether ``checked_wait`` would return it unchanged; False where only that can tell."""
    cdef double seconds
    cdef long long whole
    cdef int overflow = 0
    if timeout == <PyObject*> None:
        return True
    if PyFloat_CheckExact(timeout):
        seconds = PyFloat_AS_DOUBLE(timeout)
        return -PLAIN_WAIT_S <= seconds <= PLAIN_WAIT_S  # false for nan
    if not PyLong_CheckExact(timeout):
        return False
    whole = PyLong_AsLongLongAndOverflow(<object> timeout, &overflow)
    return not overflow and -PLAIN_WAIT_S <= whole <= PLAIN_WAIT_S


cdef class PartCore:
    """The records of one send_many() or send_arrow() call in one submission; ``BulkPart`` is built on it."""

    cdef public object submission
    cdef public Py_ssize_t first
    cdef public Py_ssize_t count


cdef class SubmissionCore:
    """The part of a submission that send() uses; ``Submission`` is built on it."""

    cdef public OutboxCore outbox
    cdef public RecordPacker packer
    cdef public bint is_closed
    cdef public Py_ssize_t payload_bytes
    cdef public list parts
    cdef public Py_ssize_t free_bytes
    cdef public Py_ssize_t count
    cdef public object callback
    cdef public list callbacks
    cdef public dict timestamps
    cdef public Py_ssize_t partition_max
    cdef public list outcomes
    cdef public object transaction

    cdef RecordsOutcome outcome_of(self, Py_ssize_t index, Py_ssize_t* rank):
        """The record's outcome, or None while it is undecided. ``rank`` is set to the number of that outcome's records
        before it.
        """
        cdef RecordsOutcome outcome
        for outcome in self.outcomes:
            rank[0] = outcome.rank_of(index)
            if rank[0] >= 0:
                return outcome
        return None

    def find(self, Py_ssize_t index):
        """The record's (error, metadata); None while it is undecided. Any thread."""
        cdef Py_ssize_t rank
        cdef RecordsOutcome outcome = self.outcome_of(index, &rank)
        if outcome is None:
            return None
        return (None, outcome.metadata_of(index, rank)) if outcome.error is None else (outcome.error, None)

    cdef inline int note_partition(self, PyObject* record) except -1:
        """Note the partition that a packed record names, if it names one."""
        cdef Py_ssize_t partition
        if PyTuple_GET_SIZE(record) == 5 and PyTuple_GET_ITEM(record, 3) != <PyObject*> None:
            partition = PyLong_AsSsize_t(<object> PyTuple_GET_ITEM(record, 3))
            if partition > self.partition_max:
                self.partition_max = partition
        return 0

    def append(self, record, Py_ssize_t size, on_delivery, timestamp_ms):
        """Append a checked record. Returns its index, or -1 when another thread has taken the room."""
        cdef list callbacks = []
        cdef dict timestamps = {}
        cdef Py_ssize_t index, number, begin
        # One step under the GIL from here on: see the docstring of the module.
        if self.free_bytes < size:
            return -1
        index = self.count
        begin = self.packer.size
        self.packer.add(record)
        self.note_partition(<PyObject*> record)
        try:
            if timestamp_ms is not None:
                if self.timestamps is None:
                    self.timestamps = timestamps
                PyDict_SetItem(self.timestamps, index, timestamp_ms)
            if not index:
                self.callback = on_delivery
            elif self.callbacks is not None:
                PyList_Append(self.callbacks, on_delivery)
            elif on_delivery is not self.callback:
                for number in range(index):
                    PyList_Append(callbacks, self.callback)
                PyList_Append(callbacks, on_delivery)
                self.callbacks = callbacks
        except BaseException:
            self.packer.size = begin
            if self.timestamps is not None:
                self.timestamps.pop(index, None)
            raise
        self.free_bytes -= size
        self.count = index + 1
        if not index and self.outbox is not None:
            self.outbox.wake_io()
        return index

    def append_rows(self, list rows, Py_ssize_t start, on_delivery, PartCore part=None):
        """Append checked records from ``rows[start]`` on. Returns how many found room; ``part`` is set to them.

        Returns -1 when the submission has records with other callbacks.
        """
        cdef RecordPacker packer = self.packer
        cdef dict timestamps = {}
        cdef Py_ssize_t begin, before, charge, number, free
        cdef PyObject* row
        cdef PyObject* key
        cdef PyObject* value
        # One step under the GIL, as ``append``.
        if self.is_closed:
            return 0
        if self.callbacks is not None or (self.count and on_delivery is not self.callback):
            return -1
        begin, free = packer.size, self.free_bytes
        try:
            for number in range(start, PyList_GET_SIZE(rows)):
                row = PyList_GET_ITEM(rows, number)
                before = packer.size
                if is_plain_pair(row):
                    key, value = PyTuple_GET_ITEM(row, 0), PyTuple_GET_ITEM(row, 1)
                    packer.add_plain(key, value, PLAIN_BYTES + bin_bytes(key) + bin_bytes(value))
                    charge = packer.size - before + ROW_CHARGE
                    if charge > free:
                        packer.size = before
                        break
                    free -= charge
                    continue
                packer.add(<object> row)
                charge = packer.size - before + ROW_CHARGE
                if charge > free:
                    packer.size = before
                    break
                free -= charge
                self.note_partition(row)
                if PyTuple_GET_SIZE(row) == 5 and PyTuple_GET_ITEM(row, 4) != <PyObject*> None:
                    PyDict_SetItem(timestamps, self.count + number - start, <object> PyTuple_GET_ITEM(row, 4))
            else:
                number = PyList_GET_SIZE(rows)
        except BaseException:
            packer.size = begin
            raise
        if number <= start:
            return 0
        if timestamps:
            if self.timestamps is None:
                self.timestamps = timestamps
            else:
                PyDict_Update(self.timestamps, timestamps)
        self.added(number - start, on_delivery, part, begin)
        self.free_bytes = free
        return number - start

    cdef int added(self, Py_ssize_t count, on_delivery, PartCore part, Py_ssize_t begin) except -1:
        """Finish a step that packed rows from byte ``begin`` on."""
        if part is not None:
            if on_delivery is None and self.parts is not None:
                try:
                    PyList_Append(self.parts, part)
                except MemoryError:
                    self.packer.size = begin
                    raise
            part.first, part.count, part.submission = self.count, count, self
        if not self.count:
            self.callback = on_delivery
            if self.outbox is not None:
                self.outbox.wake_io()
        self.count += count
        return 0

    def append_plain(self, list rows, on_delivery, PartCore part=None):
        """Append all ``rows`` if they are plain pairs that find room. Returns how many; ``part`` is set to them.

        Otherwise, or when the size of a large one must be checked, returns -1 and changes nothing. The usual call thus
        walks the rows once instead of twice.
        """
        cdef RecordPacker packer = self.packer
        cdef Py_ssize_t begin, count = PyList_GET_SIZE(rows), number, free = self.free_bytes, size
        cdef PyObject* row
        cdef PyObject* key
        cdef PyObject* value
        # One step under the GIL, as ``append``.
        if self.is_closed or self.callbacks is not None or not self.count or on_delivery is not self.callback:
            return -1
        begin = packer.size
        for number in range(count):
            row = PyList_GET_ITEM(rows, number)
            if not is_plain_pair(row):
                break
            key, value = PyTuple_GET_ITEM(row, 0), PyTuple_GET_ITEM(row, 1)
            size = PLAIN_BYTES + bin_bytes(key) + bin_bytes(value)
            if not number and count * size > self.free_bytes:
                break  # rows of one call are mostly of one length: stop before packing in vain
            if size > free or size > LARGE:
                break
            packer.add_plain(key, value, size)
            free -= size
        else:
            self.added(count, on_delivery, part, begin)
            self.free_bytes = free
            return count
        packer.size = begin
        return -1

    cdef inline Py_ssize_t put(self, PyObject* key, PyObject* value, on_delivery) except -2:
        """Append a plain record without a lock. Returns its index, or -1 when the slow path must take it."""
        cdef Py_ssize_t size = PLAIN_BYTES + bin_bytes(key) + bin_bytes(value)
        cdef Py_ssize_t index = self.count
        if size > self.free_bytes or size > LARGE or not index:
            return -1
        if self.callbacks is not None:
            self.packer.reserve(size)
            PyList_Append(self.callbacks, on_delivery)
        elif on_delivery is not self.callback:
            return -1
        self.packer.add_plain(key, value, size)
        self.free_bytes -= size
        self.count = index + 1
        return index


@cython.final
cdef class OpenStream:
    """The caller's side of one topic: the submission that takes its records now."""

    cdef public object topic
    cdef public OutboxCore outbox
    cdef public SubmissionCore open
    cdef public object refusal

    def __init__(self, topic, outbox):
        self.topic = topic
        self.outbox = outbox


@cython.final
@cython.freelist(256)
cdef class Delivery:
    """The future of one record. Thread-safe."""

    cdef readonly SubmissionCore _submission
    cdef readonly Py_ssize_t _index

    def __init__(self, SubmissionCore submission not None, Py_ssize_t index):
        self._submission = submission
        self._index = index

    def done(self) -> bool:
        """True once the record was delivered or has failed."""
        cdef Py_ssize_t rank
        return self._submission is not None and self._submission.outcome_of(self._index, &rank) is not None

    def result(self, timeout: float | None = None) -> RecordMetadata:
        """Wait at most ``timeout`` seconds for the record's position in the log.

        Raises the record's error (a SidecarError), TimeoutError after ``timeout`` (the record is still under way), and
        ForkedProducer in a forked child.
        """
        cdef SubmissionCore submission = self._submission
        cdef Py_ssize_t rank
        cdef RecordsOutcome outcome
        if not is_plain_wait(<PyObject*> timeout):
            timeout = checked_wait(timeout)
        if submission is not None and submission.outbox is not None and not submission.outbox.forked:
            outcome = submission.outcome_of(self._index, &rank)
            if outcome is not None and outcome.error is None:
                return outcome.metadata_of(self._index, rank)
        error, metadata = submission.wait_for(self._index, timeout)
        if error is not None:
            raise error
        return metadata

    def exception(self, timeout: float | None = None):
        """Wait as ``result`` does. Returns the record's error, or None when it was delivered."""
        return self._submission.wait_for(self._index, checked_wait(timeout))[0]

    def add_done_callback(self, callback):
        """Call ``callback(delivery)`` once the record has its outcome, as concurrent.futures does.

        The callback runs in the producer's io thread and must not block; if the outcome is known already, it runs at
        once in this thread. Exceptions that it raises are logged. Adding a callback does not end linger. Raises
        ForkedProducer in a forked child.
        """
        check_callable("callback", callback, "callback(delivery)")
        self._submission.when_decided(self._index, partial(callback, self))

    def __reduce__(self):
        raise no_pickle("Delivery")

    def __repr__(self):
        return "<Delivery: no outcome yet>" if self._submission is None else self._submission.describe(self._index)


cdef object refuse_await(object delivery):
    raise not_awaited(type(delivery).__name__)


def refuses_await(kind):
    """Give ``await`` of a ``kind`` the error that names AsyncProducer. Returns ``kind``: a decorator.

    An ``__await__`` that raises would make it an Awaitable. Frameworks await what a handler returns if it is one, and
    would then fail on a delivery.
    """
    ks_set_await(<PyTypeObject*> kind, refuse_await)
    return kind


refuses_await(Delivery)


cdef inline Delivery put_plain(
    dict streams, topic, value, key, headers, partition, timestamp_ms, on_delivery
):
    """Append a plain record to the open submission of its topic. Returns its future, or None and has done nothing: the
    caller's slow way must take the record.
    """
    cdef PyObject* found
    cdef SubmissionCore submission
    cdef Delivery delivery
    cdef Py_ssize_t index
    if (
        headers is None
        and partition is None
        and timestamp_ms is None
        and is_bin(<PyObject*> value)
        and is_bin(<PyObject*> key)
        and (on_delivery is None or PyCallable_Check(on_delivery))
        and streams is not None
        and isinstance(topic, str)
    ):
        found = PyDict_GetItemWithError(streams, topic)
        if found != NULL:
            submission = (<OpenStream?> <object> found).open
            if submission is not None:
                index = submission.put(<PyObject*> key, <PyObject*> value, on_delivery)
                if index >= 0:
                    delivery = Delivery.__new__(Delivery)
                    delivery._submission = submission
                    delivery._index = index
                    return delivery
    return None


cdef class EngineCore:
    """The compiled part of Engine. ``streams`` is one dict for the life of the engine: its fronts keep it."""

    cdef public dict streams

    def stream_of(self, topic):
        """The stream of ``topic``, which has an io thread that sends its records. Raises as ``open_stream``."""
        cdef PyObject* found
        if isinstance(topic, str):
            found = PyDict_GetItemWithError(self.streams, topic)
            if found != NULL:
                return <object> found
        return self.open_stream(topic)

    def try_send(self, topic, value, key, headers, partition, timestamp_ms, on_delivery):
        """Queue one record and return its Delivery, or FULL where that would have to wait. Raises as send()."""
        cdef Delivery delivery = put_plain(
            self.streams, topic, value, key, headers, partition, timestamp_ms, on_delivery
        )
        if delivery is not None:
            return delivery
        return self.send(topic, value, key, headers, partition, timestamp_ms, on_delivery, False)


cdef class ProducerCore:
    """The compiled half of Producer: appends plain records to an open submission and leaves all others to
    ``_send_slow``.
    """

    cdef public dict _streams

    def send(self, topic, value=None, key=None, headers=None, partition=None, timestamp_ms=None, on_delivery=None):
        """Queue one record and return its future. Waits only for room, when 8 MiB already wait for the daemon.

        - topic: str of 1 to 249 bytes
        - value, key: bytes, bytearray, memoryview or None (Kafka's null), or what the serializers take
        - headers: pairs of (str, bytes or None), or a mapping
        - partition: int; None: the daemon's partitioner decides
        - timestamp_ms: int; None: now
        - on_delivery(error, metadata): called in the io thread; error is None on success

        Raises TypeError or ValueError for a wrong argument, RecordTooLarge, SerializationFailed, ProducerClosed,
        DaemonRefused, TopicLimit, and after waiting for room BufferExhausted or DaemonUnreachable. A call that raises
        has queued nothing. Thread-safe.
        """
        cdef Delivery delivery = put_plain(
            self._streams, topic, value, key, headers, partition, timestamp_ms, on_delivery
        )
        if delivery is not None:
            return delivery
        return self._send_slow(topic, value, key, headers, partition, timestamp_ms, on_delivery)
