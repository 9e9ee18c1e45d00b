# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
# cython: embedsignature=False, auto_pickle=False
"""The compiled kernel. Read the included files in the order below.

It is one extension so that the walks can use each other's C structures. The types are in ``_kernel.pyi``; the
tests' oracle has the same API in plain Python. All work per record in the daemon happens here.
"""

cimport cython
from cpython.buffer cimport PyBUF_SIMPLE, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t, uintptr_t
from libc.stdlib cimport calloc, free, malloc, realloc
from libc.string cimport memcpy, memmove, memset

from sidecar.kernel.atomics cimport compare_and_swap, fetch_add, load_acquire, store_release
from sidecar.kernel.checksum cimport crc32c_of, crc32c_soft, crc_init
from sidecar.kernel.msgpack_record cimport (
    PARSE_MALFORMED,
    PARSE_NEED_MORE,
    PARSE_OK,
    Parse,
    Record,
    parse_record,
    read_array,
    read_bin,
)
from sidecar.kernel.varint cimport get16, get32, get64, put16, put32, put64, put_varint, varint_size

crc_init()

cdef enum:
    ENTRY_HEADER = 64
    PAGE_HEADER = 64
    BATCH_HEADER = 61
    OUTCOME_HEADER = 64
    LINE = 64
    RECORDS_MAX = 65535
    TAKEN = 1
    LINKED = 2
    # Words, and the failure codes the index walk itself gives (client_stub.contract.wire.LocalCode).
    WORD_UNPARTITIONED = 0xFFFF
    WORD_DONE = 0xFFFE
    WORD_FAILED_MIN = 0xFF00
    MALFORMED_RECORD = 0xFF00
    RECORD_TOO_LARGE = 0xFF01
    INVALID_PARTITION = 0xFF02
    INVALID_TIMESTAMP = 0xFF03
    FORMAT_MSGPACK = 1
    WANT_INDEXES = 1
    PARTITIONER_SHIFT = 2
    PARTITIONER_MASK = 7
    FIXED_PARTITIONS = 0x20
    SHAPE_RANGE = 0
    SHAPE_BITMAP = 1
    SHAPE_LIST = 2
    SHAPE_COUNT = 3
    # Java: 61-byte batch header + 21 bytes of record overhead, whatever the record (vector RF-09).
    UPPER_BOUND_OVERHEAD = 82
    # A walk over fewer records does not pay for giving the GIL away and taking it again.
    NOGIL_RECORDS = 256
    SCRATCH_KEPT_BYTES = 262144
    ACCEPTED_SECONDS = 65535
    INDEX_ENTRY = 40         # a slice, a count for each line, a place in a line of waiting entries; with room to grow
    INDEX_RECORD = 24        # a reference and perhaps a timestamp; with room to grow

ENTRY_HEADER_BYTES = ENTRY_HEADER
PAGE_HEADER_BYTES = PAGE_HEADER
BATCH_HEADER_BYTES = BATCH_HEADER
RECORDS_PER_ENTRY_MAX = RECORDS_MAX
PAGE_TAKEN = TAKEN
PAGE_LINKED = LINKED
ENTRY_INDEX_BYTES = INDEX_ENTRY
RECORD_INDEX_BYTES = INDEX_RECORD

cdef uint64_t WORK_NUMBER = (1 << 50) - 1     # sidecar/shm/in_work.py

cdef uint32_t NO_PAGE = 0xFFFFFFFFu
cdef uint32_t NO_ENTRY = 0xFFFFFFFFu
cdef uint64_t NO_POSITION = 0xFFFFFFFFFFFFFFFFu

include "buffers.pxi"
include "store_hook.pxi"
include "entry.pxi"
include "chain.pxi"
include "recovery.pxi"
include "key_hashes.pxi"
include "partitioner.pxi"
include "records.pxi"
include "encode.pxi"
include "batch.pxi"
include "meters.pxi"
include "columns.pxi"
include "functions.pxi"
