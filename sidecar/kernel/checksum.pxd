# cython: language_level=3
"""CRC-32C (Castagnoli) with the CPU's own instruction, chosen when the module is loaded; a table otherwise.

x86: three streams of the SSE4.2 instruction side by side (its latency is 3 cycles, its throughput 1), joined by
carry-less multiplication. ARMv8: the CRC extension. The answer is the same everywhere.
"""

from libc.stdint cimport uint8_t, uint32_t

cdef extern from *:
    """
    #include <stddef.h>
    static uint32_t ks_crc_table[8][256];

    static uint32_t ks_crc_soft(uint32_t crc, const uint8_t *p, size_t n) {
        while (n >= 8) {
            uint64_t w;
            __builtin_memcpy(&w, p, 8);
            w ^= crc;
            crc = ks_crc_table[7][w & 255] ^ ks_crc_table[6][(w >> 8) & 255] ^ ks_crc_table[5][(w >> 16) & 255]
                ^ ks_crc_table[4][(w >> 24) & 255] ^ ks_crc_table[3][(w >> 32) & 255]
                ^ ks_crc_table[2][(w >> 40) & 255] ^ ks_crc_table[1][(w >> 48) & 255] ^ ks_crc_table[0][w >> 56];
            p += 8; n -= 8;
        }
        while (n--) crc = ks_crc_table[0][(crc ^ *p++) & 255] ^ (crc >> 8);
        return crc;
    }

    static uint32_t (*ks_crc_function)(uint32_t, const uint8_t *, size_t) = ks_crc_soft;

    #if defined(__x86_64__)
    #include <immintrin.h>
    #define KS_LONG 4096
    #define KS_SHORT 256
    static uint64_t ks_fold_long[2], ks_fold_short[2];

    /* x^n modulo the (bit-reflected) polynomial: what a crc is multiplied by to move it n bits on. */
    static uint32_t ks_x_power(uint64_t n) {
        uint32_t r = 0x80000000u;
        while (n--) r = (r >> 1) ^ ((r & 1) ? 0x82F63B78u : 0);
        return r;
    }

    __attribute__((target("sse4.2,pclmul")))
    static inline uint64_t ks_shift(uint32_t crc, uint64_t k) {
        __m128i product = _mm_clmulepi64_si128(_mm_cvtsi32_si128((int)crc), _mm_cvtsi64_si128((long long)k), 0);
        return (uint64_t)_mm_cvtsi128_si64(product);
    }

    __attribute__((target("sse4.2,pclmul")))
    static const uint8_t *ks_crc_three(uint64_t *crc, const uint8_t *p, size_t *n, size_t block, const uint64_t *fold) {
        while (*n >= 3 * block) {
            uint64_t a = *crc, b = 0, c = 0;
            const uint8_t *end = p + block;
            do {
                uint64_t x, y, z;
                __builtin_memcpy(&x, p, 8);
                __builtin_memcpy(&y, p + block, 8);
                __builtin_memcpy(&z, p + 2 * block, 8);
                a = _mm_crc32_u64(a, x);
                b = _mm_crc32_u64(b, y);
                c = _mm_crc32_u64(c, z);
                p += 8;
            } while (p < end);
            /* The products are 64 bits wide; one crc32 instruction over them reduces and aligns at once. */
            *crc = c ^ _mm_crc32_u64(0, ks_shift((uint32_t)a, fold[1]) ^ ks_shift((uint32_t)b, fold[0]));
            p += 2 * block;
            *n -= 3 * block;
        }
        return p;
    }

    __attribute__((target("sse4.2,pclmul")))
    static uint32_t ks_crc_sse(uint32_t start, const uint8_t *p, size_t n) {
        uint64_t crc = start;
        p = ks_crc_three(&crc, p, &n, KS_LONG, ks_fold_long);
        p = ks_crc_three(&crc, p, &n, KS_SHORT, ks_fold_short);
        while (n >= 8) {
            uint64_t x;
            __builtin_memcpy(&x, p, 8);
            crc = _mm_crc32_u64(crc, x);
            p += 8; n -= 8;
        }
        while (n--) crc = _mm_crc32_u8((uint32_t)crc, *p++);
        return (uint32_t)crc;
    }
    #elif defined(__aarch64__)
    #include <arm_acle.h>
    #include <sys/auxv.h>
    __attribute__((target("+crc")))
    static uint32_t ks_crc_arm(uint32_t crc, const uint8_t *p, size_t n) {
        while (n >= 8) {
            uint64_t x;
            __builtin_memcpy(&x, p, 8);
            crc = __crc32cd(crc, x);
            p += 8; n -= 8;
        }
        while (n--) crc = __crc32cb(crc, *p++);
        return crc;
    }
    #endif

    static void ks_crc_init(void) {
        for (uint32_t i = 0; i < 256; i++) {
            uint32_t c = i;
            for (int bit = 0; bit < 8; bit++) c = (c >> 1) ^ ((c & 1) ? 0x82F63B78u : 0);
            ks_crc_table[0][i] = c;
        }
        for (uint32_t i = 0; i < 256; i++)
            for (int t = 1; t < 8; t++)
                ks_crc_table[t][i] = (ks_crc_table[t - 1][i] >> 8) ^ ks_crc_table[0][ks_crc_table[t - 1][i] & 255];
    #if defined(__x86_64__)
        if (__builtin_cpu_supports("sse4.2") && __builtin_cpu_supports("pclmul")) {
            /* The clmul of two reflected numbers is one bit short, and crc32 over 64 bits moves by 32 more: -33. */
            ks_fold_long[0] = ks_x_power(KS_LONG * 8 - 33); ks_fold_long[1] = ks_x_power(2 * KS_LONG * 8 - 33);
            ks_fold_short[0] = ks_x_power(KS_SHORT * 8 - 33); ks_fold_short[1] = ks_x_power(2 * KS_SHORT * 8 - 33);
            ks_crc_function = ks_crc_sse;
        }
    #elif defined(__aarch64__)
        if (getauxval(AT_HWCAP) & (1 << 7)) ks_crc_function = ks_crc_arm;
    #endif
    }

    static inline uint32_t ks_crc32c(uint32_t crc, const uint8_t *p, size_t n) {
        return ~ks_crc_function(~crc, p, n);
    }
    static inline uint32_t ks_crc32c_soft(uint32_t crc, const uint8_t *p, size_t n) {
        return ~ks_crc_soft(~crc, p, n);
    }
    """
    void crc_init "ks_crc_init"() noexcept nogil
    uint32_t crc32c_of "ks_crc32c"(uint32_t crc, const uint8_t *p, size_t n) noexcept nogil
    uint32_t crc32c_soft "ks_crc32c_soft"(uint32_t crc, const uint8_t *p, size_t n) noexcept nogil
