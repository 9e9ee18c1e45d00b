# cython: language_level=3
"""Atomic 8-byte loads and stores by GCC builtins: plain pointers, no _Atomic cast, valid under nogil.

kill -9 keeps the program order of the machine on x86 and ARM. Only the compiler, and other CPUs that read a live
writer, could see stores in another order. Release stores and acquire loads are enough for both.
"""

from libc.stdint cimport uint64_t

cdef extern from *:
    """
    #if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
    #error "the segment is little-endian and so must be the host"
    #endif
    static inline void ks_store_release(uint64_t *p, uint64_t v) { __atomic_store_n(p, v, __ATOMIC_RELEASE); }
    static inline uint64_t ks_load_acquire(const uint64_t *p) { return __atomic_load_n(p, __ATOMIC_ACQUIRE); }
    static inline int ks_compare_and_swap(uint64_t *p, uint64_t expected, uint64_t desired) {
        return __atomic_compare_exchange_n(p, &expected, desired, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE);
    }
    static inline uint64_t ks_fetch_add(uint64_t *p, uint64_t v) {
        return __atomic_fetch_add(p, v, __ATOMIC_ACQ_REL);
    }
    """
    void store_release "ks_store_release"(uint64_t *p, uint64_t v) noexcept nogil
    uint64_t load_acquire "ks_load_acquire"(const uint64_t *p) noexcept nogil
    bint compare_and_swap "ks_compare_and_swap"(uint64_t *p, uint64_t expected, uint64_t desired) noexcept nogil
    uint64_t fetch_add "ks_fetch_add"(uint64_t *p, uint64_t v) noexcept nogil
