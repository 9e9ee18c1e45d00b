# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
# cython: embedsignature=False, auto_pickle=False, annotation_typing=False
"""The caller's hot path in C: what ``pure.py`` and ``producer_core.py`` do, with the same bytes and the same behaviour.

Why nobody who sends takes a lock. What callers and the io thread change together is changed in steps that are whole
under the GIL: the methods of ``OutboxCore``, ``SubmissionCore.put``, ``append``, ``append_rows`` and ``append_plain`` run,
from their first look to their last store, no byte code, no finalizer and no allocation that the garbage collector sees
(lists, dicts and buffers grow by realloc; objects it does see are made before or after). So no other thread runs in
between, no signal handler does, and no exception that one of them raises can strike there: a record is queued or it is
not, and a handler that sends, flushes or forks finds nothing held by whom it interrupts.

- An open submission is published, listed for the io thread and set among the undecided in one step. A thread that
  makes one and finds that another was quicker throws its own away.
- A submission that takes no more has ``room`` -1. A caller that found it open just before gets -1 for its record and looks again.
- The io thread says that it sleeps (``is_asleep``) and looks once more; only then it sleeps. A submission's first record wakes
  it in the step that appends it; later ones join what it already knows of.
- Waiting for room happens before a submission is opened, and holds nothing.
- fork() runs with the GIL held, so never in the middle of a step.

None of this holds without a GIL; such builds are refused below, and then the package works without this module.
"""

cimport cython
from cpython.buffer cimport PyBUF_SIMPLE, PyBUF_WRITABLE, PyBuffer_FillInfo, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytearray cimport PyByteArray_AS_STRING
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_CheckExact, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.mem cimport PyMem_RawFree, PyMem_RawRealloc
from cpython.object cimport PyObject
from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcpy

from functools import partial

from client_stub.arguments import check_callable
from client_stub.frames import FRAME_COPIED_BYTES, FRAMES_MAX, HEADER_BYTES_MAX
from client_stub.habits import missing_call, no_pickle
from client_stub.packer import ARRAY_BYTES_MAX, LARGE_BYTES, PACKER_START_BYTES, PLAIN_OVERHEAD_BYTES, ROW_CHARGE_BYTES
from client_stub.record_metadata import RecordMetadata
from client_stub.wire import OUTCOME_HEADER_BYTES, Outcome

cdef extern from *:
    """
    #if defined(Py_GIL_DISABLED) || defined(PYPY_VERSION) || defined(GRAALVM_PYTHON)
    #error "client_stub._native appends under the GIL of CPython; without it the stub uses its pure Python path"
    #endif
    /* From 3.14 on a tuple remembers its hash, so one that was shown to somebody is not filled again. */
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
    static inline void ks_refill(PyObject *made, Py_ssize_t place, PyObject *item) {
        PyObject *old = PyTuple_GET_ITEM(made, place);
        PyTuple_SET_ITEM(made, place, item);
        Py_DECREF(old);
    }
    static inline int ks_lowest_bit(uint64_t word) { return __builtin_ctzll(word); }
    static inline int ks_bits(uint64_t word) { return __builtin_popcountll(word); }
    """
    const bint KS_MAY_REFILL_TUPLES
    ctypedef struct PyTypeObject:
        pass
    PyObject* ks_metadata(PyTypeObject*, PyObject*, PyObject*, PyObject*, PyObject*) except NULL
    void ks_refill(PyObject*, Py_ssize_t, PyObject*)
    int ks_lowest_bit(uint64_t) nogil
    int ks_bits(uint64_t) nogil

cdef extern from "Python.h":
    PyObject* PyDict_GetItemWithError(object, object) except? NULL
    PyObject* PyObject_Vectorcall(PyObject*, PyObject* const*, size_t, PyObject*)
    PyObject* PyLong_FromLongLong(long long) except NULL
    PyObject* PyList_GET_ITEM(object, Py_ssize_t)
    PyObject* PyTuple_GET_ITEM(PyObject*, Py_ssize_t)
    Py_ssize_t PyTuple_GET_SIZE(PyObject*)
    Py_ssize_t PyList_GET_SIZE(object)
    int PyList_Append(object, object) except -1
    int PyTuple_CheckExact(PyObject*)
    int PyBytes_Check(PyObject*)
    int PyCallable_Check(object)
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


include "_native_packer.pxi"
include "_native_fate.pxi"
include "_native_submission.pxi"
include "_native_outbox.pxi"
include "_native_callbacks.pxi"
include "_native_calls.pxi"
include "_native_frames.pxi"
include "_native_outcomes.pxi"
