# Buffers: foreign memory, held for as long as a pointer into it exists.


@cython.final
@cython.internal
cdef class HeldBuffer:
    """One exported buffer, released with the object."""

    cdef Py_buffer view
    cdef bint held

    def __cinit__(self):
        self.held = False

    def __dealloc__(self):
        if self.held:
            PyBuffer_Release(&self.view)

    @property
    def exporter(self):
        return <object> self.view.obj


cdef HeldBuffer hold(object exporter, bint writable):
    cdef HeldBuffer buffer = HeldBuffer.__new__(HeldBuffer)
    PyObject_GetBuffer(exporter, &buffer.view, PyBUF_WRITABLE if writable else PyBUF_SIMPLE)
    buffer.held = True
    return buffer


cdef struct Scratch:
    # The bounce buffer for records that cross a page edge; one per walk.
    uint8_t *bytes
    int64_t size


cdef inline bint scratch_reserve(Scratch *scratch, int64_t size) noexcept nogil:
    cdef uint8_t *grown
    if size <= scratch.size:
        return True
    grown = <uint8_t *> realloc(scratch.bytes, size)
    if grown == NULL:
        return False
    scratch.bytes = grown
    scratch.size = size
    return True


# Kept between walks while small; guarded by the GIL: a walk takes it, and puts it back.
cdef Scratch kept_scratch
kept_scratch.bytes = NULL
kept_scratch.size = 0


cdef inline Scratch take_scratch() noexcept:
    cdef Scratch scratch = kept_scratch
    kept_scratch.bytes = NULL
    kept_scratch.size = 0
    return scratch


cdef inline void give_scratch(Scratch scratch) noexcept:
    if kept_scratch.bytes != NULL or scratch.size > SCRATCH_KEPT_BYTES:
        free(scratch.bytes)
        return
    kept_scratch.bytes = scratch.bytes
    kept_scratch.size = scratch.size
