# StickyPartitioner: where keyless records go (KIP-794 uniform sticky; Kafka's BuiltInPartitioner).


@cython.final
cdef class StickyPartitioner:
    cdef readonly uint32_t partition_count
    cdef int64_t sticky               # -1: drawn at the next record
    cdef int64_t produced_bytes       # since the draw
    cdef int64_t sticky_bytes
    cdef uint64_t random_state
    cdef uint32_t *available
    cdef uint32_t available_count
    cdef uint32_t *counts             # scratch of the index walk: records per partition; all zero between walks
    cdef uint32_t *touched            # and the partitions that have some, in order of first record

    def __cinit__(self):
        self.available = NULL
        self.counts = NULL
        self.touched = NULL

    def __init__(self, partition_count, available, sticky_batch_bytes, seed):
        if sticky_batch_bytes <= 0:
            raise ValueError(f"sticky_batch_bytes is {sticky_batch_bytes}: it must be positive")
        self.sticky = -1
        self.sticky_bytes = sticky_batch_bytes
        self.random_state = <uint64_t> (seed & 0xFFFFFFFFFFFFFFFF)
        self.update(partition_count, available)

    def __dealloc__(self):
        free(self.available)
        free(self.counts)
        free(self.touched)

    @property
    def current(self):
        return self.sticky

    def update(self, partition_count, available):
        cdef list usable = sorted({p for p in available if 0 <= p < partition_count and p < WORD_FAILED_MIN})
        cdef uint32_t count, i
        cdef uint32_t *grown
        cdef bint kept = False
        if partition_count <= 0:
            raise ValueError(f"a topic has at least one partition, not {partition_count}")
        count = partition_count
        if not usable:
            usable = list(range(min(count, WORD_FAILED_MIN)))
        grown = <uint32_t *> realloc(self.available, len(usable) * sizeof(uint32_t))
        if grown == NULL:
            raise MemoryError()
        self.available = grown
        if count != self.partition_count:
            free(self.counts)
            free(self.touched)
            self.counts = <uint32_t *> calloc(count, sizeof(uint32_t))
            self.touched = <uint32_t *> malloc(count * sizeof(uint32_t))
            if self.counts == NULL or self.touched == NULL:
                raise MemoryError()
        self.partition_count = count
        self.available_count = len(usable)
        for i in range(self.available_count):
            self.available[i] = usable[i]
            kept = kept or usable[i] == self.sticky
        if not kept:
            self.sticky = -1

    cdef inline uint32_t draw(self, int64_t size_bytes) noexcept nogil:
        cdef uint64_t z
        if self.sticky < 0 or self.produced_bytes >= self.sticky_bytes:
            # splitmix64, then the high half of a product: unbiased enough, no division.
            self.random_state += <uint64_t> 0x9E3779B97F4A7C15
            z = self.random_state
            z = (z ^ (z >> 30)) * <uint64_t> 0xBF58476D1CE4E5B9
            z = (z ^ (z >> 27)) * <uint64_t> 0x94D049BB133111EB
            z ^= z >> 31
            self.sticky = self.available[((z >> 32) * self.available_count) >> 32]
            self.produced_bytes = 0
        self.produced_bytes += size_bytes
        return <uint32_t> self.sticky

    def next_partition(self, size_bytes):
        return self.draw(size_bytes)


cdef inline uint32_t murmur2_of(const uint8_t *data, int64_t size) noexcept nogil:
    """Kafka's murmur2: seed 0x9747b28c, little-endian words."""
    cdef uint32_t m = 0x5bd1e995
    cdef uint32_t h = <uint32_t> 0x9747b28c ^ <uint32_t> size
    cdef uint32_t k
    cdef int64_t i = 0
    while i + 4 <= size:
        memcpy(&k, data + i, 4)
        k *= m
        k ^= k >> 24
        k *= m
        h *= m
        h ^= k
        i += 4
    if size - i == 3:
        h ^= <uint32_t> data[i + 2] << 16
    if size - i >= 2:
        h ^= <uint32_t> data[i + 1] << 8
    if size - i >= 1:
        h ^= data[i]
        h *= m
    h ^= h >> 13
    h *= m
    h ^= h >> 15
    return h
