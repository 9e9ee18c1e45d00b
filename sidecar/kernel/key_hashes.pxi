# Hashes of keys, as other clients of Kafka place them.

cdef uint32_t crc32_table[256]


cdef void crc32_init() noexcept:
    cdef uint32_t i, byte
    cdef int bit
    for i in range(256):
        byte = i
        for bit in range(8):
            byte = (byte >> 1) ^ (<uint32_t> 0xEDB88320 if byte & 1 else 0)
        crc32_table[i] = byte

crc32_init()


cdef inline uint32_t crc32_of(const uint8_t *data, int64_t size) noexcept nogil:
    """zlib's CRC-32: librdkafka's ``consistent`` partitioners (rd_crc32)."""
    cdef uint32_t h = 0xFFFFFFFFu
    cdef int64_t i
    for i in range(size):
        h = crc32_table[(h ^ data[i]) & 0xFF] ^ (h >> 8)
    return h ^ 0xFFFFFFFFu


cdef inline uint32_t fnv1a_of(const uint8_t *data, int64_t size) noexcept nogil:
    """FNV-1a as a signed number made positive: librdkafka's rd_fnv1a, which follows Sarama's hash partitioner."""
    cdef uint32_t h = 0x811C9DC5u
    cdef int64_t i
    for i in range(size):
        h ^= data[i]
        h *= 0x01000193u
    return <uint32_t> 0 - h if h & 0x80000000u else h


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
