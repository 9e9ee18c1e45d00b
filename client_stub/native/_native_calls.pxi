# System calls that never block, made with the GIL held. Releasing the GIL around each would cost two context switches,
# and a busy caller may keep the io thread waiting up to sys.getswitchinterval() to get it back.


def write_wake(int fd):
    """Add one to the eventfd ``fd``.

    The woken thread gets the GIL only when the caller releases it, perhaps after a flush() call, which then travels
    together with its record. Raises OSError.
    """
    cdef uint64_t one = 1
    if write(fd, &one, 8) != 8:
        PyErr_SetFromErrno(OSError)


def clear_wakes(int fd):
    """Reset the non-blocking eventfd ``fd`` to 0, which it may be already. Raises OSError."""
    cdef uint64_t added
    if read(fd, &added, 8) != 8 and errno != EAGAIN:
        PyErr_SetFromErrno(OSError)


def receive(int fd, buffer):
    """Read from the non-blocking ``fd`` into ``buffer``. Returns the number of bytes read, 0 at the end of the
    stream.
    """
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
