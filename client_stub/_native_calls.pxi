# System calls that never wait, made with the GIL held. The io thread would else give it away each time and get it back
# from a busy caller after as much as sys.getswitchinterval(), by way of two context switches.


def write_wake(int fd):
    """Add one to the eventfd ``fd``. The woken thread gets the GIL when the caller releases it: perhaps after a
    flush, which then travels with its record."""
    cdef uint64_t one = 1
    if write(fd, &one, 8) != 8:
        PyErr_SetFromErrno(OSError)


def clear_wakes(int fd):
    """Take what was added to the non-blocking eventfd ``fd``."""
    cdef uint64_t added
    if read(fd, &added, 8) != 8:
        PyErr_SetFromErrno(OSError)


def receive(int fd, buffer):
    """Read from the non-blocking ``fd`` into ``buffer``; how many bytes came, 0 at the end of what will come."""
    cdef Py_buffer view
    cdef Py_ssize_t count
    PyObject_GetBuffer(buffer, &view, PyBUF_WRITABLE)
    count = read(fd, view.buf, view.len)
    try:
        if count < 0:
            PyErr_SetFromErrno(OSError)
    finally:
        PyBuffer_Release(&view)
    return count
