# Bits: which records an outcome covers, asked record by record.


@cython.final
cdef class Bits:
    """A bit set that tells the rank of each member. See ``pure.Bits``."""

    cdef bytes words
    cdef bytearray before       # u32 per word: members in the words before it

    def __init__(self, mask):
        cdef Py_ssize_t word, count
        cdef uint32_t found = 0
        cdef uint64_t bits
        self.words = words_of(mask)
        count = PyBytes_GET_SIZE(self.words) // 8
        self.before = bytearray(4 * count)
        for word in range(count):
            (<uint32_t*> PyByteArray_AS_STRING(self.before))[word] = found
            memcpy(&bits, PyBytes_AS_STRING(self.words) + 8 * word, 8)
            found += ks_bits(bits)

    def rank(self, Py_ssize_t index):
        """How many members are below ``index``; -1 when it is none itself."""
        cdef Py_ssize_t word = index >> 6
        cdef uint64_t bits, bit = <uint64_t> 1 << (index & 63)
        if index < 0 or 8 * word >= PyBytes_GET_SIZE(self.words):
            return -1
        memcpy(&bits, PyBytes_AS_STRING(self.words) + 8 * word, 8)
        if not bits & bit:
            return -1
        return (<uint32_t*> PyByteArray_AS_STRING(self.before))[word] + ks_bits(bits & (bit - 1))
