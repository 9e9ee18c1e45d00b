# MessageCore and TwinCore: the way of a record of confluent's twin, from produce() to its callback.


cdef extern from *:
    """
    #include <time.h>
    static inline PyObject *ks_new(PyTypeObject *kind, PyObject *arguments) {
        return kind->tp_new(kind, arguments, NULL);
    }
    static inline double ks_monotonic_s(void) {
        struct timespec now;
        clock_gettime(CLOCK_MONOTONIC, &now);
        return now.tv_sec + now.tv_nsec * 1e-9;
    }
    """
    object ks_new(type, tuple)
    double ks_monotonic_s() nogil

cdef object ZERO = 0
cdef object MINUS_ONE = -1
cdef tuple NO_ARGUMENTS = ()


cdef class TwinCore


cdef class MessageCore:
    """A record as produce() took it, and then its outcome. As the record's callback it waits for the next poll()."""

    cdef public object _topic
    cdef public object _value
    cdef public object _key
    cdef public object _headers
    cdef public object _partition
    cdef public object _error
    cdef public double _latency_s
    cdef double at_s
    cdef TwinCore twin
    cdef object report
    cdef object delivered_partition  # the partition where it lies; None: it was not delivered
    cdef object timestamp_ms
    cdef int64_t offset

    def __init__(self, TwinCore twin not None, report, topic, value, key, headers, partition):
        self.begin(twin, report, topic, value, key)
        self._headers, self._partition = headers, partition

    cdef inline void begin(self, TwinCore twin, report, topic, value, key):
        self.twin, self.report = twin, report
        self._topic, self._value, self._key = topic, value, key
        self.at_s = ks_monotonic_s()

    @property
    def _metadata(self):
        """The position in the log; None: it was not delivered, or not yet."""
        if self.delivered_partition is None:
            return None
        return RecordMetadata(self._topic, self.delivered_partition, self.offset, self.timestamp_ms)

    def __call__(self, error, metadata):
        """The outcome is there. Io thread."""
        if error is not None:
            self.failed(error)
        else:
            self.delivered(metadata[1], metadata[2], metadata[3])

    cdef int failed(self, error) except -1:
        self._error = self.twin._error_of(error)
        return self.arrive()

    cdef int delivered(self, partition, int64_t offset, timestamp_ms) except -1:
        if self.twin._only_errors:
            return 0
        self.delivered_partition, self.offset, self.timestamp_ms = partition, offset, timestamp_ms
        return self.arrive()

    cdef int arrive(self) except -1:
        cdef TwinCore twin = self.twin
        cdef bint is_first = twin.position == PyList_GET_SIZE(twin.arrived)
        self._latency_s = ks_monotonic_s() - self.at_s
        twin._event_count += 1
        PyList_Append(twin.arrived, self)
        if is_first:
            twin._news.put(None)
        return 0

    cdef inline int serve(self) except -1:
        """Call the program's callback, once."""
        report, self.report = self.report, None
        report(self._error, self)
        return 0


cdef class TwinCore:
    """The compiled half of confluent's Producer: takes plain records into an open submission, and leaves all others to
    ``_produce`` and ``_poll``.
    """

    cdef public dict _streams
    cdef public type _message_kind
    cdef public object _news
    cdef public Py_ssize_t _event_count
    cdef public object _on_delivery
    cdef public bint _only_errors
    cdef public bint _is_closed
    cdef list arrived           # messages whose callback is to be called, from ``position`` on
    cdef Py_ssize_t position

    def __cinit__(self):
        self.arrived = []

    def _forget_arrived(self):
        self.arrived, self.position = [], 0

    def _arrived_count(self):
        return PyList_GET_SIZE(self.arrived) - self.position

    cdef MessageCore next_arrived(self):
        """The next message to serve, or None. Between its reads and its stores no other thread can run."""
        cdef list fresh
        cdef MessageCore message
        if self.position == PyList_GET_SIZE(self.arrived):
            return None
        message = <MessageCore> self.arrived[self.position]
        self.arrived[self.position] = None
        self.position += 1
        if self.position == PyList_GET_SIZE(self.arrived):
            fresh = []  # made before the step: it may run a finalizer, and so another thread
            if self.position == PyList_GET_SIZE(self.arrived):
                self.arrived, self.position = fresh, 0
        return message

    def produce(
        self, topic, value=None, key=None, partition=-1, callback=None, on_delivery=None, timestamp=0, headers=None
    ):
        """Queue one record. Raises BufferError when there is no room, KafkaException for a record that is refused, and
        TypeError for a key or value that is neither text nor bytes. The first call waits up to 5 s for the daemon.
        """
        cdef PyObject* found
        cdef SubmissionCore submission
        cdef MessageCore message = None
        cdef list callbacks
        report = callback if callback is not None else on_delivery
        if (
            headers is None
            and partition is MINUS_ONE
            and timestamp is ZERO
            and (report is None or PyCallable_Check(report))
            and (callback is None or on_delivery is None)
            and not self._is_closed
            and isinstance(topic, str)
        ):
            if type(value) is str:
                value = (<str> value).encode()
            if type(key) is str:
                key = (<str> key).encode()
            found = PyDict_GetItemWithError(self._streams, topic)
            if found != NULL and is_bin(<PyObject*> value) and is_bin(<PyObject*> key):
                submission = (<OpenStream?> <object> found).open
                if submission is not None:
                    if report is None:
                        report = self._on_delivery
                    if report is not None:
                        message = <MessageCore> ks_new(self._message_kind, NO_ARGUMENTS)
                        message.begin(self, report, topic, value, key)
                        message._partition = MINUS_ONE
                        if submission.callbacks is None and submission.count:
                            # Each message is a callback of its own. The list is made before the step that sets it.
                            callbacks = [submission.callback] * submission.count
                            if submission.callbacks is None and len(callbacks) == submission.count:
                                submission.callbacks = callbacks
                    if submission.put(<PyObject*> key, <PyObject*> value, message) >= 0:
                        return
        self._produce(topic, value, key, partition, callback, on_delivery, timestamp, headers)

    def poll(self, timeout=-1):
        """Run the callbacks of decided records. Returns how many, or how many records without a callback were decided.

        Waits at most ``timeout`` seconds for the first outcome (None or negative: until there is one, also of a record
        that another thread has yet to produce). Exceptions of callbacks are raised here.
        """
        if timeout is ZERO and not self._is_closed and self.position == PyList_GET_SIZE(self.arrived):
            return 0  # programs call poll(0) for each record
        return self._poll(timeout)

    def _serve(self, list raised=None):
        """Run the callbacks of all messages that wait. Returns how many. An exception ends this, or is appended to
        ``raised`` if it is the first.
        """
        cdef Py_ssize_t served = 0
        cdef MessageCore message
        while not self._news.empty():
            try:
                self._news.get_nowait()
            except Empty:  # another thread was quicker
                break
        while True:
            message = self.next_arrived()
            if message is None:
                return served
            served += 1
            try:
                message.serve()
            except Exception as failure:
                if raised is None:
                    raise
                if not raised:
                    raised.append(failure)
