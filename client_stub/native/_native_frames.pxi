# ZMTP frames: the compiled twin of frames.py, which draws them.

cdef enum:
    MORE_FLAG = 1
    LONG_FLAG = 2

cdef Py_ssize_t COPIED_BYTES = FRAME_COPIED_BYTES
cdef Py_ssize_t HEADER_MAX = HEADER_BYTES_MAX
cdef Py_ssize_t FRAME_COUNT_MAX = FRAMES_MAX


def whole_message(view, Py_ssize_t start, Py_ssize_t end, Py_ssize_t bytes_max):
    """(frames, end) of the message that begins at ``start``; None when next_message() has to parse its first bytes."""
    cdef Py_buffer held
    cdef const uint8_t *data
    cdef uint64_t size
    cdef Py_ssize_t at = start, body, i
    cdef uint8_t flags = MORE_FLAG
    cdef list frames = []
    PyObject_GetBuffer(view, &held, PyBUF_SIMPLE)
    try:
        data = <const uint8_t *> held.buf
        if start < 0 or end > held.len:
            raise ValueError(f"bytes {start} to {end} of {held.len}")
        while flags & MORE_FLAG:
            if end - at < 2 or len(frames) == FRAME_COUNT_MAX:
                return None
            flags = data[at]
            if flags > (MORE_FLAG | LONG_FLAG):
                return None
            if flags & LONG_FLAG:
                if end - at < 9:
                    return None
                size = 0
                for i in range(1, 9):
                    size = size << 8 | data[at + i]
                body = at + 9
            else:
                size = data[at + 1]
                body = at + 2
            if size > <uint64_t> (end - body) or (not frames and size > <uint64_t> HEADER_MAX):
                return None
            at = body + <Py_ssize_t> size
            if at - start > bytes_max:
                return None
            frames.append(view[body:at])
    finally:
        PyBuffer_Release(&held)
    return frames, at


def encode(frames):
    """One message as buffers to be written one after another. Large frames are not copied."""
    cdef list buffers = []
    cdef Py_ssize_t index, begin = 0, count = len(frames)
    for index in range(count):
        if len(frames[index]) > COPIED_BYTES:
            buffers.append(_gathered(frames, begin, index + 1, count))
            buffers.append(frames[index])
            begin = index + 1
    if begin < count:
        buffers.append(_gathered(frames, begin, count, count))
    return buffers


cdef bytes _gathered(frames, Py_ssize_t begin, Py_ssize_t stop, Py_ssize_t count):
    """The headers of these frames, each followed by its body unless the body is large."""
    cdef Py_ssize_t total = 0, index, size, i
    cdef uint8_t *out
    cdef uint8_t more
    cdef bytes made
    cdef Py_buffer held
    for index in range(begin, stop):
        size = len(frames[index])
        total += (9 if size > 255 else 2) + (size if size <= COPIED_BYTES else 0)
    made = PyBytes_FromStringAndSize(NULL, total)
    out = <uint8_t *> PyBytes_AS_STRING(made)
    for index in range(begin, stop):
        size = len(frames[index])
        more = MORE_FLAG if index + 1 < count else 0
        if size > 255:
            out[0] = more | LONG_FLAG
            for i in range(8):
                out[8 - i] = <uint8_t> (size >> (8 * i))
            out += 9
        else:
            out[0] = more
            out[1] = <uint8_t> size
            out += 2
        if size <= COPIED_BYTES:
            PyObject_GetBuffer(frames[index], &held, PyBUF_SIMPLE)
            if held.len != size:
                PyBuffer_Release(&held)
                raise ValueError(f"frame {index} is no sequence of bytes")
            memcpy(out, held.buf, size)
            PyBuffer_Release(&held)
            out += size
    return made
