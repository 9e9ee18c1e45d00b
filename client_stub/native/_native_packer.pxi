# RecordPacker: writes msgpack into one growing buffer, byte for byte as msgpack.Packer does.


cdef inline uint8_t* put_head(uint8_t* at, uint64_t number, int width) noexcept:
    """Write ``number`` big-endian in ``width`` bytes. Returns the position after it."""
    cdef int shift = 8 * width
    while shift:
        shift -= 8
        at[0] = <uint8_t> (number >> shift)
        at += 1
    return at


cdef inline uint8_t* put_bin(uint8_t* at, PyObject* content) noexcept:
    """Write bytes (at most 4 GiB) or None. Returns the position after them."""
    cdef Py_ssize_t size
    if content == <PyObject*> None:
        at[0] = 0xC0
        return at + 1
    size = PyBytes_GET_SIZE(<object> content)
    if size < 1 << 8:
        at[0] = 0xC4
        at[1] = <uint8_t> size
        at += 2
    elif size < 1 << 16:
        at[0] = 0xC5
        at = put_head(at + 1, size, 2)
    else:
        at[0] = 0xC6
        at = put_head(at + 1, size, 4)
    memcpy(at, PyBytes_AS_STRING(<object> content), size)
    return at + size


cdef inline uint8_t* put_unsigned(uint8_t* at, uint64_t number) noexcept:
    if number < 1 << 7:
        at[0] = <uint8_t> number
        return at + 1
    if number < 1 << 8:
        at[0] = 0xCC
        return put_head(at + 1, number, 1)
    if number < 1 << 16:
        at[0] = 0xCD
        return put_head(at + 1, number, 2)
    if number < <uint64_t> 1 << 32:
        at[0] = 0xCE
        return put_head(at + 1, number, 4)
    at[0] = 0xCF
    return put_head(at + 1, number, 8)


cdef inline bint is_bin(PyObject* content) noexcept:
    return content == <PyObject*> None or PyBytes_CheckExact(<object> content)


cdef inline bint is_plain_pair(PyObject* row) noexcept:
    return (
        PyTuple_CheckExact(row)
        and PyTuple_GET_SIZE(row) == 2
        and is_bin(PyTuple_GET_ITEM(row, 0))
        and is_bin(PyTuple_GET_ITEM(row, 1))
    )


cdef inline Py_ssize_t bin_bytes(PyObject* content) noexcept:
    return 0 if content == <PyObject*> None else PyBytes_GET_SIZE(<object> content)


@cython.final
cdef class RecordPacker:
    """A reusable buffer of packed records. ``pack(record)`` appends one record; a call that raises has appended
    nothing.
    """

    cdef uint8_t* data
    cdef Py_ssize_t size
    cdef Py_ssize_t capacity
    cdef Py_ssize_t exports

    def __dealloc__(self):
        PyMem_RawFree(self.data)

    def __len__(self):
        return self.size

    def __getbuffer__(self, Py_buffer* buffer, int flags):
        if self.data == NULL:
            self.reserve(1)
        PyBuffer_FillInfo(buffer, self, self.data, self.size, 1, flags)
        self.exports += 1

    def __releasebuffer__(self, Py_buffer* buffer):
        self.exports -= 1

    def view(self):
        return memoryview(self)

    def reset(self):
        """Drop the records. Raises BufferError while a view of their bytes exists."""
        if self.exports:
            raise BufferError("the packed records are still looked at")
        self.size = 0

    def pack(self, record):
        """Append a record whose types are checked: ``(key, value)`` or ``(key, value, headers, partition,
        timestamp_ms)``.
        """
        self.add(record)

    cdef int reserve(self, Py_ssize_t more) except -1:
        """Make room for ``more`` bytes. Runs no Python code unless it raises MemoryError or BufferError."""
        cdef Py_ssize_t wanted = self.size + more
        cdef Py_ssize_t capacity = self.capacity or START_BYTES
        cdef uint8_t* grown
        if wanted <= self.capacity:
            return 0
        if self.exports:
            raise BufferError("the packed records are still looked at")
        while capacity < wanted:
            capacity *= 2
        grown = <uint8_t*> PyMem_RawRealloc(self.data, capacity)
        if grown == NULL:
            raise MemoryError()
        self.data, self.capacity = grown, capacity
        return 0

    cdef inline int add_plain(self, PyObject* key, PyObject* value, Py_ssize_t bound) except -1:
        """Append a record whose key and value are bytes or None. ``bound`` is at least its size in bytes. Runs no
        Python code.
        """
        cdef uint8_t* at
        if bound > BIN_MAX:
            raise ValueError("A key or value must be smaller than 4 GiB.")
        self.reserve(bound)
        at = self.data + self.size
        at[0] = 0x92
        at = put_bin(put_bin(at + 1, key), value)
        self.size = at - self.data
        return 0

    cdef int add(self, record) except -1:
        """Append a record of two or five fields. Runs no Python code unless a type is wrong."""
        cdef Py_ssize_t begin = self.size
        if not isinstance(record, tuple) or len(<tuple> record) not in (2, 5):
            raise TypeError(f"a record must be a tuple of two or five fields, not {record!r:.60}.")
        try:
            self.add_byte(0x90 + len(<tuple> record))
            self.add_bin((<tuple> record)[0])
            self.add_bin((<tuple> record)[1])
            if len(<tuple> record) == 5:
                self.add_headers((<tuple> record)[2])
                self.add_unsigned((<tuple> record)[3])
                self.add_unsigned((<tuple> record)[4])
        except BaseException:
            self.size = begin
            raise
        return 0

    cdef int add_byte(self, uint8_t byte) except -1:
        self.reserve(1)
        self.data[self.size] = byte
        self.size += 1
        return 0

    cdef int add_bin(self, content) except -1:
        if content is not None:
            if not PyBytes_Check(<PyObject*> content):
                raise TypeError(f"bytes or None expected, not {type(content).__name__}.")
            if PyBytes_GET_SIZE(content) > BIN_MAX:
                raise ValueError("A key or value must be smaller than 4 GiB.")
        self.reserve(5 + bin_size_of(content))
        self.size = put_bin(self.data + self.size, <PyObject*> content) - self.data
        return 0

    cdef int add_unsigned(self, number) except -1:
        cdef uint64_t value
        if number is None:
            return self.add_byte(0xC0)
        value = number
        self.reserve(9)
        self.size = put_unsigned(self.data + self.size, value) - self.data
        return 0

    cdef int add_text(self, text) except -1:
        cdef Py_ssize_t size = 0
        cdef const char* data = PyUnicode_AsUTF8AndSize(text, &size)
        cdef uint8_t* at
        if size > BIN_MAX:
            raise ValueError("A header's name must be smaller than 4 GiB.")
        self.reserve(5 + size)
        at = self.data + self.size
        if size < 32:
            at[0] = <uint8_t> (0xA0 | size)
            at += 1
        elif size < 1 << 8:
            at[0] = 0xD9
            at = put_head(at + 1, size, 1)
        elif size < 1 << 16:
            at[0] = 0xDA
            at = put_head(at + 1, size, 2)
        else:
            at[0] = 0xDB
            at = put_head(at + 1, size, 4)
        memcpy(at, data, size)
        self.size = at + size - self.data
        return 0

    cdef int add_headers(self, headers) except -1:
        cdef Py_ssize_t count, index
        if headers is None:
            return self.add_byte(0xC0)
        if not isinstance(headers, list):
            raise TypeError(f"checked headers expected, not {type(headers).__name__}.")
        count = len(<list> headers)
        self.reserve(ARRAY_MAX)
        if count < 16:
            self.add_byte(0x90 | count)
        elif count < 1 << 16:
            self.add_byte(0xDC)
            self.size = put_head(self.data + self.size, count, 2) - self.data
        else:
            self.add_byte(0xDD)
            self.size = put_head(self.data + self.size, count, 4) - self.data
        for index in range(count):
            pair = (<list> headers)[index]
            if not isinstance(pair, tuple) or len(<tuple> pair) != 2:
                raise TypeError(f"headers must be (name, value) pairs, not {pair!r:.80}.")
            self.add_byte(0x92)
            self.add_text((<tuple> pair)[0])
            self.add_bin((<tuple> pair)[1])
        return 0


cdef inline Py_ssize_t bin_size_of(content) noexcept:
    return 0 if content is None else PyBytes_GET_SIZE(content)


def plain_pairs(list records not None):
    """None unless every record is a (key, value) tuple of bytes or None, which one C call can pack.

    Otherwise a list of the indexes of records above LARGE_BYTES, whose size is still to be checked.
    """
    cdef Py_ssize_t index
    cdef PyObject* row
    cdef list large = []
    for index in range(PyList_GET_SIZE(records)):
        row = PyList_GET_ITEM(records, index)
        if not is_plain_pair(row):
            return None
        if PLAIN_BYTES + bin_bytes(PyTuple_GET_ITEM(row, 0)) + bin_bytes(PyTuple_GET_ITEM(row, 1)) > LARGE:
            large.append(index)
    return large if PyList_GET_SIZE(records) else None
