# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
# cython: embedsignature=False, auto_pickle=False, annotation_typing=False
"""The stub's hot path in C: records into submissions, outcomes into futures and callbacks, and its frames.

Why no sender takes a lock: callers and the io thread change their shared state in steps that are atomic under the GIL.
These steps are the methods of ``OutboxCore``, ``SubmissionCore.put``, ``append``, ``append_rows`` and
``append_plain``. From its first read to its last store, a step runs no byte code and no finalizer. Nor does it
allocate an object that the garbage collector tracks: lists, dicts and buffers grow by realloc, and tracked objects are
made before or after the step. So no other thread and no signal handler can run in the middle of a step, and no
exception that one of them raises can interrupt it. A record is either queued or not, and a signal handler that sends,
flushes or forks never finds a lock held by the code that it interrupted.

- One step publishes an open submission, lists it for the io thread and adds it to the undecided ones. When two threads
  make one at the same time, the slower thread throws its own away.
- A submission that takes no more records has ``room`` -1. A caller that looked it up just before gets -1 for its
  record and looks it up again.
- The io thread announces that it is about to sleep (``is_asleep``), checks for work once more, and only then sleeps.
  The step that appends a submission's first record wakes the io thread; later records join a submission that the
  thread already knows.
- A caller waits for room before it opens a submission, and holds nothing while it waits.
- fork() runs with the GIL held, so never in the middle of a step.

None of this holds without a GIL, so such builds fail below.
"""

cimport cython
from cpython.buffer cimport PyBUF_SIMPLE, PyBUF_WRITABLE, PyBuffer_FillInfo, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytearray cimport PyByteArray_AS_STRING
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_CheckExact, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.mem cimport PyMem_RawFree, PyMem_RawRealloc
from cpython.object cimport PyObject
from libc.errno cimport EAGAIN, errno
from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcpy

from functools import partial
from queue import Empty

from client_stub.records.arguments import SEND_FIELDS, check_callable, checked_wait
from client_stub.zmtp.frames import FRAME_COPIED_BYTES, FRAMES_MAX, HEADER_BYTES_MAX
from client_stub.records.habits import no_pickle, not_awaited, unknown_field
from client_stub.records.packer import ARRAY_BYTES_MAX, LARGE_BYTES, PACKER_START_BYTES, PLAIN_OVERHEAD_BYTES, ROW_CHARGE_BYTES
from client_stub.record_metadata import RecordMetadata
from client_stub.contract.wire import OUTCOME_HEADER_BYTES, Outcome

cdef extern from *:
    """
    #if defined(Py_GIL_DISABLED) || defined(PYPY_VERSION) || defined(GRAALVM_PYTHON)
    #error "client_stub needs CPython with its GIL: its steps on shared state are whole under that lock"
    #endif
    /* From 3.14 on a tuple caches its hash, so a tuple that a callback has seen must not be refilled. */
    #define KS_MAY_REFILL_TUPLES (PY_VERSION_HEX < 0x030E0000)
    static inline PyObject *ks_metadata(PyTypeObject *type, PyObject *topic, PyObject *partition,
                                        PyObject *offset, PyObject *timestamp) {
        PyObject *made = type->tp_alloc(type, 4);
        if (made == NULL) { Py_DECREF(offset); return NULL; }
        Py_INCREF(topic); Py_INCREF(partition); Py_INCREF(timestamp);
        PyTuple_SET_ITEM(made, 0, topic);
        PyTuple_SET_ITEM(made, 1, partition);
        PyTuple_SET_ITEM(made, 2, offset);
        PyTuple_SET_ITEM(made, 3, timestamp);
        return made;
    }
    static inline void ks_refill(PyObject *made, Py_ssize_t index, PyObject *item) {
        PyObject *old = PyTuple_GET_ITEM(made, index);
        PyTuple_SET_ITEM(made, index, item);
        Py_DECREF(old);
    }
    static PyAsyncMethods ks_no_await;
    static inline void ks_set_await(PyTypeObject *type, unaryfunc refuse) {
        if (type->tp_as_async == NULL) type->tp_as_async = &ks_no_await;
        type->tp_as_async->am_await = refuse;
    }
    static inline int ks_lowest_bit(uint64_t word) { return __builtin_ctzll(word); }
    static inline int ks_bits(uint64_t word) { return __builtin_popcountll(word); }
    """
    const bint KS_MAY_REFILL_TUPLES
    ctypedef struct PyTypeObject:
        pass
    PyObject* ks_metadata(PyTypeObject*, PyObject*, PyObject*, PyObject*, PyObject*) except NULL
    void ks_refill(PyObject*, Py_ssize_t, PyObject*)
    void ks_set_await(PyTypeObject*, object (*)(object))
    int ks_lowest_bit(uint64_t) nogil
    int ks_bits(uint64_t) nogil

cdef extern from "Python.h":
    PyObject* PyDict_GetItemWithError(object, object) except? NULL
    PyObject* PyObject_Vectorcall(PyObject*, PyObject* const*, size_t, PyObject*)
    PyObject* PyLong_FromLongLong(long long) except NULL
    Py_ssize_t PyLong_AsSsize_t(object) except? -1
    PyObject* PyList_GET_ITEM(object, Py_ssize_t)
    PyObject* PyTuple_GET_ITEM(PyObject*, Py_ssize_t)
    Py_ssize_t PyTuple_GET_SIZE(PyObject*)
    Py_ssize_t PyList_GET_SIZE(object)
    int PyList_Append(object, object) except -1
    int PyTuple_CheckExact(PyObject*)
    int PyBytes_Check(PyObject*)
    int PyCallable_Check(object)
    int PyFloat_CheckExact(PyObject*)
    double PyFloat_AS_DOUBLE(PyObject*)
    int PyLong_CheckExact(PyObject*)
    long long PyLong_AsLongLongAndOverflow(object, int*)
    int PyDict_DelItem(object, object) except -1
    int PyDict_SetItem(object, object, object) except -1
    int PyDict_Update(object, object) except -1
    int PyDict_Next(object, Py_ssize_t*, PyObject**, PyObject**)
    const char* PyUnicode_AsUTF8AndSize(object, Py_ssize_t*) except NULL
    Py_ssize_t Py_REFCNT(PyObject*)
    void Py_INCREF(PyObject*)
    void Py_DECREF(PyObject*)
    void Py_XDECREF(PyObject*)
    PyObject* PyErr_SetFromErrno(object) except NULL
    size_t PY_VECTORCALL_ARGUMENTS_OFFSET

cdef extern from "<unistd.h>":
    Py_ssize_t read(int, void*, size_t)
    Py_ssize_t write(int, const void*, size_t)

cdef Py_ssize_t PLAIN_BYTES = PLAIN_OVERHEAD_BYTES
cdef Py_ssize_t LARGE = LARGE_BYTES
cdef Py_ssize_t ROW_CHARGE = ROW_CHARGE_BYTES
cdef Py_ssize_t START_BYTES = PACKER_START_BYTES
cdef Py_ssize_t ARRAY_MAX = ARRAY_BYTES_MAX
cdef Py_ssize_t BIN_MAX = 0xFFFFFFFF
cdef double PLAIN_WAIT_S = 1e9


include "_native_packer.pxi"
include "_native_records_outcome.pxi"
include "_native_submission.pxi"
include "_native_keywords.pxi"
include "_native_outbox.pxi"
include "_native_callbacks.pxi"
include "_native_calls.pxi"
include "_native_frames.pxi"
include "_native_outcomes.pxi"
include "_native_twin.pxi"
