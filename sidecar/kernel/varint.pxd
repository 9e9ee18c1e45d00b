# cython: language_level=3
"""Zig-zag varints of Kafka's v2 records (ByteUtils.writeVarint / writeVarlong) and big-endian stores."""

from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t

cdef extern from *:
    """
    static inline uint64_t ks_zigzag(int64_t v) { return ((uint64_t)v << 1) ^ (uint64_t)(v >> 63); }
    /* Bytes of a varint = ceil(significant bits / 7), by multiplication instead of a loop. */
    static inline uint32_t ks_varint_size(int64_t v) {
        return (uint32_t)((64 - __builtin_clzll(ks_zigzag(v) | 1)) * 9 + 64) >> 6;
    }
    static inline uint8_t *ks_put_varint(uint8_t *p, int64_t v) {
        uint64_t z = ks_zigzag(v);
        while (z >= 0x80) { *p++ = (uint8_t)(z | 0x80); z >>= 7; }
        *p++ = (uint8_t)z;
        return p;
    }
    static inline void ks_put16(uint8_t *p, uint16_t v) { v = __builtin_bswap16(v); __builtin_memcpy(p, &v, 2); }
    static inline void ks_put32(uint8_t *p, uint32_t v) { v = __builtin_bswap32(v); __builtin_memcpy(p, &v, 4); }
    static inline void ks_put64(uint8_t *p, uint64_t v) { v = __builtin_bswap64(v); __builtin_memcpy(p, &v, 8); }
    static inline uint16_t ks_get16(const uint8_t *p) { uint16_t v; __builtin_memcpy(&v, p, 2); return __builtin_bswap16(v); }
    static inline uint32_t ks_get32(const uint8_t *p) { uint32_t v; __builtin_memcpy(&v, p, 4); return __builtin_bswap32(v); }
    static inline uint64_t ks_get64(const uint8_t *p) { uint64_t v; __builtin_memcpy(&v, p, 8); return __builtin_bswap64(v); }
    """
    uint32_t varint_size "ks_varint_size"(int64_t v) noexcept nogil
    uint8_t *put_varint "ks_put_varint"(uint8_t *p, int64_t v) noexcept nogil
    void put16 "ks_put16"(uint8_t *p, uint16_t v) noexcept nogil
    void put32 "ks_put32"(uint8_t *p, uint32_t v) noexcept nogil
    void put64 "ks_put64"(uint8_t *p, uint64_t v) noexcept nogil
    uint16_t get16 "ks_get16"(const uint8_t *p) noexcept nogil
    uint32_t get32 "ks_get32"(const uint8_t *p) noexcept nogil
    uint64_t get64 "ks_get64"(const uint8_t *p) noexcept nogil
