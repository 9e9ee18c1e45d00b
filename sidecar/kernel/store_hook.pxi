# The store hook, for tests that observe every store into the segment, or kill the process right after one.

cdef enum:
    # The same order as in sidecar/tools/testing/kill_points/points.py, which has the names.
    AT_PAGE_HEADER = 0
    AT_PAGE_LINKED = 1
    AT_ENTRY_HEADER = 2
    AT_ENTRY_WORDS = 3
    AT_ENTRY_PAYLOAD = 4
    AT_PAGE_ENTRY = 5
    AT_TAIL = 6
    AT_INDEX_WORD = 7
    AT_FAILED_WORD = 8
    AT_DONE_WORD = 9
    AT_PAGE_TAKEN = 10
    AT_PAGE_GIVEN = 11

cdef extern from *:
    """
    #define ks_unlikely(x) __builtin_expect(!!(x), 0)
    """
    bint unlikely "ks_unlikely"(bint condition) noexcept nogil

cdef bint hook_is_set = False
cdef object store_hook = None


cdef void call_hook(int point) noexcept with gil:
    store_hook(point)


cdef inline void stored(int point) noexcept nogil:
    """Call the hook after a store. Without a hook this is one predicted branch."""
    if unlikely(hook_is_set):
        call_hook(point)


def set_store_hook(hook):
    global store_hook, hook_is_set
    store_hook = hook
    hook_is_set = hook is not None
