# Counters and histograms in shared words, and measurements of a worker's batches. No Python code runs per record here.

cdef enum:
    BOUNDS_MAX = 32
    ROWS_MAX = 1048576           # of clients; a number beyond it is damage

cdef inline uint32_t tenths(double ms) noexcept nogil:
    """Tenths of a millisecond, modulo 2^32: differences of up to five days are right."""
    return <uint32_t> <int64_t> (ms * 10)


cdef class CounterBlock:
    cdef HeldBuffer buffer
    cdef uint64_t *words             # the sequence word, then one for each row
    cdef dict indexes
    cdef bint is_readonly

    def __init__(self, block, dict indexes not None):
        self.is_readonly = memoryview(block).readonly
        self.buffer = hold(block, not self.is_readonly)
        self.words = <uint64_t *> self.buffer.view.buf
        if <uintptr_t> self.words & 7:
            raise ValueError("the block must be 8-byte aligned")
        if not all(0 < index < self.buffer.view.len // 8 for index in indexes.values()):
            raise ValueError(f"not every row is in a block of {self.buffer.view.len} bytes")
        self.indexes = indexes

    cdef inline uint64_t *row(self, name) except NULL:
        return self.words + <Py_ssize_t> self.indexes[name]

    cdef inline int begin(self) except -1:
        if self.is_readonly:
            raise TypeError("cannot modify read-only memory")
        fetch_add(self.words, 1)
        return 0

    def inc(self, row, int64_t amount=1):
        cdef uint64_t *word = self.row(row)
        self.begin()
        word[0] += <uint64_t> amount
        fetch_add(self.words, 1)

    def add(self, dict amounts not None):
        cdef uint64_t *word
        cdef int64_t value
        self.begin()
        try:
            for row, amount in amounts.items():
                word = self.row(row)
                value = <int64_t> word[0] + <int64_t> amount
                word[0] = <uint64_t> value if value > 0 else 0
        finally:
            fetch_add(self.words, 1)

    def set(self, row, uint64_t value):
        cdef uint64_t *word = self.row(row)
        self.begin()
        word[0] = value
        fetch_add(self.words, 1)

    def get(self, row):
        return self.row(row)[0]


@cython.final
cdef class Histogram:
    cdef HeldBuffer buffer
    cdef uint64_t *sequence
    cdef uint64_t *words             # a count for each bound, one for what is above them, the sum
    cdef int64_t bounds[BOUNDS_MAX]
    cdef Py_ssize_t bound_count

    def __init__(self, block, first, bounds):
        cdef Py_ssize_t i
        if not 0 < len(bounds) <= BOUNDS_MAX or list(bounds) != sorted(set(bounds)):
            raise ValueError(f"bounds {bounds!r} are not 1 to {BOUNDS_MAX} ascending numbers")
        self.buffer = hold(block, True)
        self.bound_count = len(bounds)
        if not 0 < first <= self.buffer.view.len // 8 - (self.bound_count + 2):
            raise ValueError(f"{self.bound_count + 2} words from {first} on are not in a block of {len(block)} bytes")
        self.sequence = <uint64_t *> self.buffer.view.buf
        if <uintptr_t> self.sequence & 7:
            raise ValueError("the block must be 8-byte aligned")
        self.words = self.sequence + <Py_ssize_t> first
        for i in range(self.bound_count):
            self.bounds[i] = bounds[i]

    cdef inline void put(self, int64_t value, uint64_t times) noexcept nogil:
        cdef Py_ssize_t i = 0
        while i < self.bound_count and value > self.bounds[i]:
            i += 1
        self.words[i] += times
        self.words[self.bound_count + 1] += <uint64_t> value * times

    def observe(self, double value):
        fetch_add(self.sequence, 1)
        self.put(<int64_t> value if value > 0 else 0, 1)
        fetch_add(self.sequence, 1)

    def observe_ages(self, BatchRecords records not None, double now_ms):
        fetch_add(self.sequence, 1)
        self.put_ages(records, now_ms)
        fetch_add(self.sequence, 1)

    cdef void put_ages(self, BatchRecords records, double now_ms) noexcept:
        """Add ages; submissions of one turn have the same age and are added in one step."""
        cdef uint32_t now = tenths(now_ms), taken, start = 0, age
        cdef Py_ssize_t i = 0
        while i < records.slice_total:
            taken = records.slices[i].taken
            i += 1
            while i < records.slice_total and records.slices[i].taken == taken:
                i += 1
            age = now - taken
            if age > 0x7fffffff:
                age = 0
            self.put(age, records.slice_stop(i - 1) - start)
            start = records.slice_stop(i - 1)


@cython.final
cdef class SendMeter:
    cdef readonly uint64_t requests_saved
    cdef Histogram ages, sizes, counts
    cdef uint32_t *stamps            # by client row, the last request with records of it
    cdef uint32_t stamp_count
    cdef uint32_t request
    cdef bint has_client             # the request has records of some client

    def __cinit__(self):
        self.stamps = NULL
        self.request = 1

    def __init__(self, Histogram ages not None, Histogram sizes not None, Histogram counts not None):
        self.ages = ages
        self.sizes = sizes
        self.counts = counts

    def __dealloc__(self):
        free(self.stamps)

    def begin_request(self):
        self.request += 1
        self.has_client = False
        if self.request == 0 and self.stamps != NULL:
            memset(self.stamps, 0, self.stamp_count * sizeof(uint32_t))
            self.request = 1

    def count(self, BatchRecords records not None, double now_ms, bint is_first):
        cdef Py_ssize_t i
        fetch_add(self.sizes.sequence, 1)
        self.sizes.put(BATCH_HEADER + records.records_bytes, 1)
        self.counts.put(records.count, 1)
        if is_first:
            self.ages.put_ages(records, now_ms)
        fetch_add(self.sizes.sequence, 1)
        for i in range(records.slice_total):
            if records.chain.left_of(records.slices[i].position):
                self.note(records.chain.header_at(records.slices[i].position).client_row)

    cdef int note(self, uint32_t row) except -1:
        cdef uint32_t *grown
        cdef uint32_t size
        if row >= ROWS_MAX:
            return 0
        if row >= self.stamp_count:
            size = max(2 * self.stamp_count, row + 64)
            grown = <uint32_t *> realloc(self.stamps, size * sizeof(uint32_t))
            if grown == NULL:
                raise MemoryError()
            memset(grown + self.stamp_count, 0, (size - self.stamp_count) * sizeof(uint32_t))
            self.stamps = grown
            self.stamp_count = size
        if self.stamps[row] != self.request:
            self.stamps[row] = self.request
            self.requests_saved += self.has_client
            self.has_client = True
        return 0
