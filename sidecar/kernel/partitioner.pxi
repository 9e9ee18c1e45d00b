# StickyPartitioner: chooses partitions. Keyed records by hash, others by KIP-794's uniform sticky choice (Kafka's
# BuiltInPartitioner), weighted by the batches waiting for each partition; or as librdkafka and RoundRobinPartitioner
# do.

cdef enum:
    BY_MURMUR2 = 0
    BY_CRC32 = 1
    BY_FNV1A = 2
    BY_FNV1A_RANDOM = 3
    BY_CHANCE = 4
    BY_TURN = 5
    QUEUE_LENGTH_MAX = 65535      # so that the sum of all weights stays below 2**32

cdef enum:
    # PARTITIONERS of client_stub/contract/wire.py, each behind its twin without "random": a client names them, in the flags.
    NAMED_RANDOM = 1
    NAMED_CONSISTENT_RANDOM = 3
    NAMED_MURMUR2_RANDOM = 5
    NAMED_FNV1A_RANDOM = 7

PARTITIONERS = ("murmur2", "consistent_random", "fnv1a", "fnv1a_random", "random", "round_robin")


@cython.final
cdef class StickyPartitioner:
    cdef readonly uint32_t partition_count
    cdef int kind
    cdef bint ignore_keys
    cdef int64_t sticky               # -1: drawn at the next record
    cdef int64_t produced_bytes       # since the draw
    cdef int64_t sticky_bytes
    cdef uint64_t random_state
    cdef uint32_t turn                # of round robin
    cdef uint32_t *available
    cdef uint32_t available_count
    cdef uint32_t *lengths            # batches that wait, per partition
    cdef uint32_t loaded              # partitions whose length is not 0
    cdef uint32_t *weights            # running sums over ``available``; made again when ``weights_stale``
    cdef bint weights_stale
    cdef uint32_t *counts             # scratch of the index walk: records per partition; all zero between walks
    cdef uint32_t *touched            # and the partitions that have some, in order of first record

    def __cinit__(self):
        self.available = NULL
        self.lengths = NULL
        self.weights = NULL
        self.counts = NULL
        self.touched = NULL

    def __init__(
        self, partition_count, available, sticky_batch_bytes, seed, *, kind="murmur2", ignore_keys=False
    ):
        if sticky_batch_bytes <= 0:
            raise ValueError(f"sticky_batch_bytes is {sticky_batch_bytes}: it must be positive")
        if kind not in PARTITIONERS:
            raise ValueError(f"partitioner {kind!r} is not one of {', '.join(PARTITIONERS)}")
        self.kind = PARTITIONERS.index(kind)
        self.ignore_keys = ignore_keys
        self.sticky = -1
        self.sticky_bytes = sticky_batch_bytes
        self.random_state = <uint64_t> (seed & 0xFFFFFFFFFFFFFFFF)
        self.update(partition_count, available)

    def __dealloc__(self):
        free(self.available)
        free(self.lengths)
        free(self.weights)
        free(self.counts)
        free(self.touched)

    @property
    def current(self):
        return self.sticky

    def update(self, partition_count, available):
        cdef list usable = sorted({p for p in available if 0 <= p < partition_count and p < WORD_FAILED_MIN})
        cdef uint32_t count, i
        cdef bint kept = False
        if partition_count <= 0:
            raise ValueError(f"a topic has at least one partition, not {partition_count}")
        count = partition_count
        if not usable:
            usable = list(range(min(count, WORD_FAILED_MIN)))
        self.reserve(count, len(usable))
        self.available_count = len(usable)
        for i in range(self.available_count):
            self.available[i] = usable[i]
            kept = kept or usable[i] == self.sticky
        self.weights_stale = True
        if not kept:
            self.sticky = -1

    cdef reserve(self, uint32_t count, size_t usable):
        """Allocate memory for ``count`` partitions. Queue lengths of remaining partitions are kept."""
        cdef uint32_t *grown = <uint32_t *> realloc(self.available, usable * sizeof(uint32_t))
        cdef uint32_t i
        if grown == NULL:
            raise MemoryError()
        self.available = grown
        grown = <uint32_t *> realloc(self.weights, usable * sizeof(uint32_t))
        if grown == NULL:
            raise MemoryError()
        self.weights = grown
        if count == self.partition_count:
            return
        free(self.counts)
        free(self.touched)
        self.counts = <uint32_t *> calloc(count, sizeof(uint32_t))
        self.touched = <uint32_t *> malloc(count * sizeof(uint32_t))
        grown = <uint32_t *> calloc(count, sizeof(uint32_t))
        if self.counts == NULL or self.touched == NULL or grown == NULL:
            free(grown)
            raise MemoryError()
        self.loaded = 0
        for i in range(min(count, self.partition_count)):
            grown[i] = self.lengths[i]
            self.loaded += grown[i] != 0
        free(self.lengths)
        self.lengths = grown
        self.partition_count = count

    def set_queue_length(self, partition, batches):
        cdef int64_t at = partition
        cdef uint32_t length
        if batches < 0:
            raise ValueError(f"a queue has no {batches} batches")
        if not 0 <= at < self.partition_count:
            return
        length = min(batches, QUEUE_LENGTH_MAX)
        if length == self.lengths[at]:
            return
        self.loaded += (length != 0) - <int> (self.lengths[at] != 0)
        self.lengths[at] = length
        self.weights_stale = True

    cdef inline uint32_t random_below(self, uint32_t bound) noexcept nogil:
        cdef uint64_t z
        # splitmix64, then the high half of a product: unbiased enough, no division.
        self.random_state += <uint64_t> 0x9E3779B97F4A7C15
        z = self.random_state
        z = (z ^ (z >> 30)) * <uint64_t> 0xBF58476D1CE4E5B9
        z = (z ^ (z >> 27)) * <uint64_t> 0x94D049BB133111EB
        z ^= z >> 31
        return <uint32_t> (((z >> 32) * bound) >> 32)

    cdef void weigh(self) noexcept nogil:
        """Running sums of longest + 1 - length over the available partitions (KIP-794)."""
        cdef uint32_t i, longest = 0, sum = 0
        for i in range(self.available_count):
            if self.lengths[self.available[i]] > longest:
                longest = self.lengths[self.available[i]]
        for i in range(self.available_count):
            sum += longest + 1 - self.lengths[self.available[i]]
            self.weights[i] = sum
        self.weights_stale = False

    cdef uint32_t by_load(self) noexcept nogil:
        cdef uint32_t low = 0, high = self.available_count - 1, middle, drawn
        if self.weights_stale:
            self.weigh()
        drawn = self.random_below(self.weights[high])
        while low < high:
            middle = (low + high) // 2
            if self.weights[middle] > drawn:
                high = middle
            else:
                low = middle + 1
        return self.available[low]

    cdef inline uint32_t by_chance(self) noexcept nogil:
        return self.available[self.random_below(self.available_count)]

    cdef inline uint32_t draw(self, int64_t size_bytes) noexcept nogil:
        if self.sticky < 0 or self.produced_bytes >= self.sticky_bytes:
            self.sticky = self.by_load() if self.loaded else self.by_chance()
            self.produced_bytes = 0
        self.produced_bytes += size_bytes
        return <uint32_t> self.sticky

    cdef inline uint32_t place(self, const uint8_t *key, int64_t key_bytes, int64_t size_bytes) noexcept nogil:
        """Partition of a record; ``key_bytes`` -1 is a null key. May be a partition that does not fit into a word."""
        if self.kind == BY_MURMUR2:
            if key_bytes < 0 or self.ignore_keys:
                return self.draw(size_bytes)
            return (murmur2_of(key, key_bytes) & 0x7fffffff) % self.partition_count
        if self.kind == BY_CRC32 and key_bytes > 0:
            return crc32_of(key, key_bytes) % self.partition_count
        if self.kind == BY_FNV1A or (self.kind == BY_FNV1A_RANDOM and key_bytes >= 0):
            return fnv1a_of(key, key_bytes if key_bytes > 0 else 0) % self.partition_count
        if self.kind == BY_TURN:
            self.turn += 1
            return self.available[(self.turn - 1) % self.available_count]
        return self.by_chance()

    cdef uint32_t place_as(
        self, int named, const uint8_t *key, int64_t key_bytes, int64_t size_bytes
    ) noexcept nogil:
        """As ``place``, by the partitioner that the record's client has named."""
        if key_bytes < 0 or (key_bytes == 0 and named == NAMED_CONSISTENT_RANDOM):
            if named & 1:  # those with "random" in the name
                return self.draw(size_bytes)
            key_bytes = 0
        if named == NAMED_RANDOM:
            return self.by_chance()
        if named <= NAMED_CONSISTENT_RANDOM:
            return crc32_of(key, key_bytes) % self.partition_count
        if named <= NAMED_MURMUR2_RANDOM:
            return (murmur2_of(key, key_bytes) & 0x7fffffff) % self.partition_count
        return fnv1a_of(key, key_bytes) % self.partition_count

    def next_partition(self, size_bytes, key=None, int named=0):
        cdef const uint8_t *data
        if not 0 <= named <= NAMED_FNV1A_RANDOM:
            raise ValueError(f"no partitioner has the number {named}")
        if key is None:
            return self.place_as(named, NULL, -1, size_bytes) if named else self.place(NULL, -1, size_bytes)
        if not isinstance(key, bytes):
            raise TypeError(f"a key is bytes or None, not {type(key).__name__}")
        data = <const uint8_t *> PyBytes_AS_STRING(key)
        if named:
            return self.place_as(named, data, len(key), size_bytes)
        return self.place(data, len(key), size_bytes)
