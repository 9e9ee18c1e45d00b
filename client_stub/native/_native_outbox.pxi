# OutboxCore: the state that callers and the io thread share. Each change is one step under the GIL.


cdef class OutboxCore:
    """The part of ``Outbox`` that threads share. Its methods run no byte code, so no thread, signal handler or
    exception can come between their stores.
    """

    cdef public dict streams
    cdef public list opened
    cdef public dict pending
    cdef public object fatal
    cdef public object transaction
    cdef public bint is_transactional
    cdef public bint closed
    cdef public bint forked
    cdef public bint flush_requested
    cdef readonly bint is_asleep
    cdef public long long closed_bytes
    cdef int wake_fd

    def __init__(self):
        self.streams, self.pending, self.opened = {}, {}, []
        self.wake_fd = -1

    def set_wake_fd(self, int fd):
        """Set the eventfd that wakes the io thread. -1 is set before the eventfd is closed, so that no caller writes
        to it any more.
        """
        self.wake_fd = fd

    cdef void wake_io(self) noexcept:
        cdef uint64_t one = 1
        if self.is_asleep and self.wake_fd >= 0:
            self.is_asleep = False
            write(self.wake_fd, &one, 8)

    def wake(self, *, bint always=False):
        """Wake the io thread if it sleeps; with ``always``, also if it is about to sleep."""
        self.is_asleep |= always
        self.wake_io()

    def expedite(self):
        """Request that open submissions are sent, and that the daemon does not linger."""
        self.flush_requested = True
        self.wake_io()

    def fall_asleep(self):
        """For the io thread: callers wake it from now on. It has to check for work once more after this call."""
        self.is_asleep = True

    def awake(self):
        """For the io thread: callers need not wake it."""
        self.is_asleep = False

    def publish(self, OpenStream stream not None, SubmissionCore expected, SubmissionCore made not None):
        """Replace ``expected``, which takes no more records, by ``made``. Returns False and does nothing when another
        thread did so first, when the outbox takes no more records at all, or when the transaction of ``made`` is not
        open: it has ended meanwhile, or none was open when ``made`` was.
        """
        if self.closed or self.fatal is not None or stream.open is not expected:
            return False
        if made.transaction is not self.transaction or (self.is_transactional and made.transaction is None):
            return False
        PyList_Append(self.opened, made)
        try:
            PyDict_SetItem(self.pending, made, None)
        except MemoryError:
            self.opened.pop()
            raise
        if expected is not None:
            self.end(expected)
        if made.is_closed:
            self.closed_bytes += made.payload_bytes
            stream.open = None
        else:
            stream.open = made
        if made.is_closed or expected is not None:
            self.wake_io()
        return True

    def close_open(self, OpenStream stream not None, SubmissionCore submission not None):
        """Stop appending to ``submission`` if it is the open one of ``stream``."""
        if stream.open is submission:
            stream.open = None
            self.end(submission)

    def close_all_open(self):
        cdef Py_ssize_t position = 0
        cdef PyObject* topic
        cdef PyObject* found
        cdef OpenStream stream
        while PyDict_Next(self.streams, &position, &topic, &found):
            stream = <OpenStream> <object> found
            if stream.open is not None:
                self.end(stream.open)
                stream.open = None

    def forget_idle(self):
        """Forget the streams without an open submission and without a refusal, except those that a call uses now: it
        holds a reference besides the dictionary's.
        """
        cdef Py_ssize_t position = 0
        cdef PyObject* topic
        cdef PyObject* found
        cdef list idle = []
        # One step under the GIL from here on, so that no call finds a stream between the check and its end.
        while PyDict_Next(self.streams, &position, &topic, &found):
            if (
                Py_REFCNT(found) == 1
                and (<OpenStream> found).open is None
                and (<OpenStream> found).refusal is None
            ):
                PyList_Append(idle, <object> topic)
        for position in range(PyList_GET_SIZE(idle)):
            PyDict_DelItem(self.streams, <object> PyList_GET_ITEM(idle, position))

    cdef void end(self, SubmissionCore submission) noexcept:
        submission.is_closed = True
        submission.free_bytes = -1  # for callers that found it open just before
        submission.payload_bytes = submission.packer.size
        self.closed_bytes += submission.payload_bytes
