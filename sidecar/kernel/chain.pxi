# Chain: the journal's logical byte stream over pages, written by its one owner, read again by recovery.

cdef struct Window:
    # A stretch of the chain that is contiguous in memory: [begin, end) in chain positions.
    uint8_t *bytes
    uint64_t begin
    uint64_t end

cdef struct PageUse:
    # The owner's notes on one page of the chain. The index of entries is here: two bytes for each line of 64.
    uint32_t page            # its index; NO_PAGE where released
    uint32_t live            # live entries that touch it
    uint16_t *left           # by line: records not done of the entry that begins there; NULL: none begins here
    uint32_t *logged         # by line: the file of the accept log that holds it; NULL: none is in a log


@cython.final
cdef class Chain:
    cdef readonly uint32_t slot
    cdef readonly uint32_t chain_id
    cdef readonly uint32_t incarnation
    cdef readonly uint64_t live_records
    cdef readonly list damage
    cdef HeldBuffer pages_buffer, owners_buffer, tail_buffer
    cdef uint8_t *pages
    cdef uint64_t *owners
    cdef uint64_t *tail_word
    cdef uint64_t page_bytes
    cdef uint64_t payload
    cdef uint32_t pages_total
    cdef uint64_t accepted            # = the tail word
    cdef uint64_t write_at            # where the next entry goes: the tail, or the next page after a released one
    cdef PageUse *uses                # by page ordinal - first_page
    cdef uint64_t first_page
    cdef Py_ssize_t span              # of ``uses``
    cdef Py_ssize_t capacity
    cdef Py_ssize_t linked
    cdef Py_ssize_t releasable
    cdef uint64_t live                # entries that are not done
    cdef list finished                # (ordinal, log file, payload bytes) of ended entries that are in a log

    def __cinit__(self):
        self.uses = NULL

    def __init__(self, pages, page_bytes, slot, chain_id, tail_word, *, incarnation, owners):
        if self.pages_buffer is not None:
            raise TypeError("a Chain is made once")
        if page_bytes % LINE or page_bytes < 4 * LINE:
            raise ValueError(f"page_bytes is {page_bytes}: it must be a multiple of 64, at least 256")
        self.pages_buffer = hold(pages, True)
        self.owners_buffer = hold(owners, True)
        self.tail_buffer = hold(tail_word, True)
        self.pages = <uint8_t *> self.pages_buffer.view.buf
        self.owners = <uint64_t *> self.owners_buffer.view.buf
        self.tail_word = <uint64_t *> self.tail_buffer.view.buf
        self.page_bytes = page_bytes
        self.payload = page_bytes - PAGE_HEADER
        self.pages_total = <uint32_t> (self.pages_buffer.view.len // page_bytes)
        if self.owners_buffer.view.len < 8 * <Py_ssize_t> self.pages_total:
            raise ValueError(f"{self.pages_total} pages need {8 * self.pages_total} bytes of owner words")
        if self.tail_buffer.view.len < 8:
            raise ValueError("the tail word is 8 bytes")
        if (<uintptr_t> self.owners | <uintptr_t> self.tail_word | <uintptr_t> self.pages) & 7:
            raise ValueError("pages, owner words and tail word must be 8-byte aligned")
        self.slot = slot
        self.chain_id = chain_id
        self.incarnation = incarnation
        self.finished = []
        self.damage = []
        self.accepted = load_acquire(self.tail_word)
        self.write_at = self.page_up(self.accepted)
        self.first_page = self.write_at // self.payload

    def __dealloc__(self):
        cdef Py_ssize_t i
        for i in range(self.span):
            self.drop(i)
        free(self.uses)

    cdef inline uint64_t page_up(self, uint64_t position) noexcept nogil:
        return (position + self.payload - 1) // self.payload * self.payload

    @property
    def tail(self):
        return self.accepted

    @property
    def next_ordinal(self):
        return self.write_at // LINE

    @property
    def live_entries(self):
        return self.live

    @property
    def page_count(self):
        return self.linked

    def entries(self, first=0, stop=None):
        cdef uint64_t position = self.next_live(<uint64_t> first * LINE), end = NO_POSITION
        if stop is not None:
            end = <uint64_t> stop * LINE
        while position < end:
            yield self.view(position)
            position = self.next_live(position + LINE)

    def ordinals(self, first, limit):
        cdef uint64_t position = self.next_live(<uint64_t> first * LINE)
        cdef Py_ssize_t most = min(<object> limit, self.live), found = 0
        cdef bytes out = PyBytes_FromStringAndSize(NULL, 8 * most)
        cdef uint64_t *ordinals = <uint64_t *> PyBytes_AS_STRING(out)
        while position != NO_POSITION and found < most:
            ordinals[found] = position // LINE
            found += 1
            position = self.next_live(position + LINE)
        return out[: 8 * found]

    def entry(self, ordinal):
        if self.left_of(<uint64_t> ordinal * LINE) == 0:
            raise ValueError(f"{self!r} has no live entry {ordinal}")
        return self.view(<uint64_t> ordinal * LINE)

    def log_file(self, ordinal):
        cdef PageUse *use = self.use_at(<uint64_t> ordinal * LINE)
        return use.logged[self.line_of(<uint64_t> ordinal * LINE)] if use != NULL and use.logged != NULL else 0

    def set_log_file(self, ordinal, uint32_t number):
        cdef PageUse *use
        if self.left_of(<uint64_t> ordinal * LINE) == 0:
            raise ValueError(f"{self!r} has no live entry {ordinal}")
        use = self.use_at(<uint64_t> ordinal * LINE)
        if use.logged == NULL:
            use.logged = <uint32_t *> calloc(self.payload // LINE, sizeof(uint32_t))
            if use.logged == NULL:
                raise MemoryError()
        use.logged[self.line_of(<uint64_t> ordinal * LINE)] = number

    def held_between(self, first, stop):
        cdef uint64_t position = self.next_live(<uint64_t> first * LINE), end = NO_POSITION
        cdef uint64_t records = 0, payload_bytes = 0
        if stop is not None:
            end = <uint64_t> stop * LINE
        while position < end:
            records += self.left_of(position)
            payload_bytes += self.header_at(position).payload_bytes
            position = self.next_live(position + LINE)
        return records, payload_bytes

    def streams(self):
        return sums_of_streams(self)

    def take_finished(self):
        finished, self.finished = self.finished, []
        return finished

    # ---- pages -------------------------------------------------------------------------------------------------

    cdef inline uint8_t *page_at(self, uint64_t page_ordinal) noexcept nogil:
        """Start of a page of this chain, with its header; NULL if it is not linked."""
        cdef uint32_t page
        if page_ordinal < self.first_page or page_ordinal - self.first_page >= <uint64_t> self.span:
            return NULL
        page = self.uses[page_ordinal - self.first_page].page
        if page == NO_PAGE:
            return NULL
        return self.pages + page * self.page_bytes

    cdef inline bint window(self, uint64_t position, Window *window) noexcept nogil:
        """Set ``window`` to the contiguous bytes around a position. False if its page is gone."""
        cdef uint64_t ordinal = position // self.payload
        cdef uint8_t *page = self.page_at(ordinal)
        if page == NULL:
            return False
        window.bytes = page + PAGE_HEADER
        window.begin = ordinal * self.payload
        window.end = window.begin + self.payload
        return True

    cdef bint copy_out(self, uint64_t position, uint8_t *out, uint64_t size) noexcept nogil:
        cdef Window window
        cdef uint64_t part
        while size:
            if not self.window(position, &window):
                return False
            part = min(size, window.end - position)
            memcpy(out, window.bytes + (position - window.begin), part)
            position += part
            out += part
            size -= part
        return True

    cdef bint copy_in(self, uint64_t position, const uint8_t *source, uint64_t size) noexcept nogil:
        """Copy into linked pages; ``source`` NULL: zeros."""
        cdef Window window
        cdef uint64_t part
        while size:
            if not self.window(position, &window):
                return False
            part = min(size, window.end - position)
            if source == NULL:
                memset(window.bytes + (position - window.begin), 0, part)
            else:
                memcpy(window.bytes + (position - window.begin), source, part)
                source += part
            position += part
            size -= part
        return True

    cdef inline PageUse *use_at(self, uint64_t position) noexcept nogil:
        """The page that contains ``position``; NULL if it is gone."""
        cdef uint64_t ordinal = position // self.payload
        if ordinal < self.first_page or ordinal - self.first_page >= <uint64_t> self.span:
            return NULL
        if self.uses[ordinal - self.first_page].page == NO_PAGE:
            return NULL
        return self.uses + (ordinal - self.first_page)

    cdef inline uint64_t line_of(self, uint64_t position) noexcept nogil:
        return position % self.payload // LINE

    cdef inline uint32_t left_of(self, uint64_t position) noexcept nogil:
        """Number of records not done of the entry that begins at ``position``; 0 if none begins there or it
        has ended.
        """
        cdef PageUse *use = self.use_at(position)
        if use == NULL or use.left == NULL:
            return 0
        return use.left[self.line_of(position)]

    cdef inline EntryHeader *header_at(self, uint64_t position) noexcept nogil:
        """Header of a live entry, inside its page: lines never cross pages."""
        return <EntryHeader *> (self.page_at(position // self.payload) + PAGE_HEADER + position % self.payload)

    cdef uint64_t next_live(self, uint64_t position) noexcept nogil:
        """Position of the first live entry at ``position`` or after it; NO_POSITION if there is none."""
        cdef uint64_t lines = self.payload // LINE
        cdef uint64_t page = max(position // self.payload, self.first_page)
        cdef uint64_t line = self.line_of(position) if page == position // self.payload else 0
        cdef uint16_t *left
        while page - self.first_page < <uint64_t> self.span:
            left = self.uses[page - self.first_page].left
            if left != NULL and self.uses[page - self.first_page].live:
                while line < lines:
                    if left[line]:
                        return page * self.payload + line * LINE
                    line += 1
            line = 0
            page += 1
        return NO_POSITION

    cdef inline void drop(self, Py_ssize_t i) noexcept:
        free(self.uses[i].left)
        free(self.uses[i].logged)
        self.uses[i].left = NULL
        self.uses[i].logged = NULL
        self.uses[i].page = NO_PAGE

    cdef int reserve(self, Py_ssize_t span) except -1:
        cdef Py_ssize_t capacity = max(8, self.capacity)
        cdef PageUse *grown
        while capacity < span:
            capacity *= 2
        if capacity == self.capacity:
            return 0
        grown = <PageUse *> realloc(self.uses, capacity * sizeof(PageUse))
        if grown == NULL:
            raise MemoryError()
        self.uses = grown
        self.capacity = capacity
        return 0

    def pages_needed(self, count, payload_bytes):
        cdef uint64_t end, have
        if count <= 0 or count > payload_bytes or count > RECORDS_MAX or payload_bytes > 0x7fffffff:
            raise ValueError(f"no entry has {count} records in {payload_bytes} payload bytes")
        end = self.write_at + entry_bytes_of(count, payload_bytes)
        have = self.first_page + self.span
        end = self.page_up(end) // self.payload
        return end - have if end > have else 0

    def link_pages(self, page_indexes):
        cdef PageHeader *header
        cdef uint32_t page
        cdef uint64_t taken = (<uint64_t> self.incarnation << 32) | TAKEN
        for page in page_indexes:
            if page >= self.pages_total:
                raise ValueError(f"page {page} is not one of {self.pages_total}")
            if load_acquire(self.owners + page) != taken:
                raise ValueError(f"page {page} was not taken by incarnation {self.incarnation}")
            self.reserve(self.span + 1)
            header = <PageHeader *> (self.pages + page * self.page_bytes)
            memset(header, 0, PAGE_HEADER)
            header.slot = self.slot
            header.chain_id = self.chain_id
            header.ordinal = self.first_page + self.span
            header.first_entry_offset = NO_ENTRY
            header.incarnation = self.incarnation
            stored(AT_PAGE_HEADER)
            store_release(self.owners + page, (<uint64_t> self.incarnation << 32) | LINKED)
            stored(AT_PAGE_LINKED)
            memset(self.uses + self.span, 0, sizeof(PageUse))
            self.uses[self.span].page = page
            self.span += 1
            self.linked += 1

    # ---- entries -----------------------------------------------------------------------------------------------

    cdef Entry view(self, uint64_t position):
        cdef EntryHeader *header = self.header_at(position)
        cdef Entry entry = Entry.__new__(Entry)
        entry.chain = self
        entry.position = position
        entry.count = header.count
        entry.seq = header.seq
        entry.stream = header.stream
        entry.client_row = header.client_row
        entry.client_generation = header.client_generation
        entry.base_timestamp_ms = header.base_timestamp_ms
        entry.payload_bytes = header.payload_bytes
        entry.format = header.format
        entry.flags = header.flags
        entry.accepted = header.accepted
        entry.txn_number = header.txn_number
        return entry

    def append(self, payload, *, count, client_row, client_generation, stream, seq, base_timestamp_ms, format, flags,
               txn_number=0, double accepted_ms=-1.0):
        cdef Py_buffer view
        cdef EntryHeader header
        cdef PageHeader *page
        cdef uint64_t position = self.write_at
        cdef uint64_t total, words_end, payload_begin
        cdef uint32_t records
        if format != FORMAT_MSGPACK:
            raise ValueError(f"format {format} is not kept in the journal: turn columns into records first")
        memset(&header, 0, sizeof(header))
        header.client_row = client_row
        header.client_generation = client_generation
        header.stream = stream
        header.format = format
        header.flags = flags
        header.seq = seq
        header.base_timestamp_ms = base_timestamp_ms
        header.txn_number = txn_number
        if accepted_ms >= 0:
            header.accepted = <uint16_t> (1 + <uint64_t> (accepted_ms / 1000) % ACCEPTED_SECONDS)
        PyObject_GetBuffer(payload, &view, PyBUF_SIMPLE)
        try:
            if count <= 0 or count > RECORDS_MAX or count > view.len or view.len > 0x7fffffff:
                raise ValueError(f"no entry has {count} records in {view.len} payload bytes")
            records = count
            total = entry_bytes_of(records, view.len)
            if position + total > (self.first_page + self.span) * self.payload:
                raise ValueError(f"{self.pages_needed(count, view.len)} more pages are needed before the entry fits")
            header.entry_bytes = <uint32_t> total
            header.count = records
            header.ordinal = position // LINE
            header.payload_bytes = <uint32_t> view.len
            words_end = position + ENTRY_HEADER + 2 * <uint64_t> records
            payload_begin = payload_at(position, records)
            self.copy_in(position, <const uint8_t *> &header, ENTRY_HEADER)
            stored(AT_ENTRY_HEADER)
            self.fill_words(position + ENTRY_HEADER, records)
            self.copy_in(words_end, NULL, payload_begin - words_end)
            stored(AT_ENTRY_WORDS)
            self.copy_in(payload_begin, <const uint8_t *> view.buf, view.len)
            self.copy_in(payload_begin + view.len, NULL, position + total - payload_begin - view.len)
            stored(AT_ENTRY_PAYLOAD)
        finally:
            PyBuffer_Release(&view)
        page = <PageHeader *> self.page_at(position // self.payload)
        if page.first_entry_offset == NO_ENTRY:
            page.first_entry_ordinal = header.ordinal
            page.first_entry_offset = <uint32_t> (position % self.payload)
            stored(AT_PAGE_ENTRY)
        self.remember(position, &header, records)
        # Accepted from here on: everything above was plain writes.
        store_release(self.tail_word, position + total)
        stored(AT_TAIL)
        self.accepted = position + total
        self.write_at = position + total
        return self.view(position)

    cdef void fill_words(self, uint64_t position, uint32_t count) noexcept:
        cdef Window window
        cdef uint64_t size = 2 * <uint64_t> count, part
        while size and self.window(position, &window):
            part = min(size, window.end - position)
            memset(window.bytes + (position - window.begin), 0xFF, part)
            position += part
            size -= part

    cdef int remember(self, uint64_t position, EntryHeader *header, uint32_t left) except -1:
        """Note that an entry is live, with ``left`` records that are not done."""
        cdef uint64_t page = position // self.payload - self.first_page
        cdef uint64_t last = (position + header.entry_bytes - 1) // self.payload - self.first_page
        cdef PageUse *use = self.uses + page
        if use.left == NULL:
            use.left = <uint16_t *> calloc(self.payload // LINE, sizeof(uint16_t))
            if use.left == NULL:
                raise MemoryError()
        use.left[self.line_of(position)] = <uint16_t> left
        self.live += 1
        self.live_records += left
        while page <= last:
            self.uses[page].live += 1
            page += 1
        return 0

    cdef bint settle(self, uint64_t position, uint32_t records) except -1:
        """Count ``records`` more words of a live entry as done. True if that finished it."""
        cdef uint64_t page, last, line = self.line_of(position)
        cdef PageUse *use
        cdef EntryHeader *header
        if records == 0:
            return False
        use = self.use_at(position)
        use.left[line] -= records
        self.live_records -= records
        if use.left[line]:
            return False
        self.live -= 1
        header = self.header_at(position)
        if use.logged != NULL and use.logged[line]:
            self.finished.append((position // LINE, use.logged[line], header.payload_bytes))
            use.logged[line] = 0
        page = position // self.payload
        last = (position + entry_bytes_of(header.count, header.payload_bytes) - 1) // self.payload
        while page <= last:
            use = self.uses + (page - self.first_page)
            use.live -= 1
            if use.live == 0 and (page + 1) * self.payload <= self.write_at:
                self.releasable += 1
            page += 1
        return True

    def release_pages(self):
        cdef list released = []
        cdef Py_ssize_t i, closed
        if not self.releasable:
            return released
        closed = <Py_ssize_t> (self.write_at // self.payload - self.first_page)
        for i in range(closed):
            if self.uses[i].live == 0 and self.uses[i].page != NO_PAGE:
                released.append(self.uses[i].page)
                self.drop(i)
        self.linked -= len(released)
        self.releasable = 0
        self.trim()
        return released

    def release_idle(self):
        cdef list released = []
        cdef Py_ssize_t i
        if self.live:
            return self.release_pages()
        for i in range(self.span):
            if self.uses[i].page != NO_PAGE:
                released.append(self.uses[i].page)
                self.drop(i)
        # The next entry begins on a new page; readers treat a missing page as finished.
        self.write_at = self.page_up(self.accepted)
        self.first_page = self.write_at // self.payload
        self.span = 0
        self.linked = 0
        self.releasable = 0
        return released

    cdef void trim(self) noexcept:
        """Forget released pages at the front."""
        cdef Py_ssize_t gone = 0
        while gone < self.span and self.uses[gone].page == NO_PAGE:
            gone += 1
        if gone == 0:
            return
        memmove(self.uses, self.uses + gone, (self.span - gone) * sizeof(PageUse))
        self.first_page += gone
        self.span -= gone

    # ---- recovery ----------------------------------------------------------------------------------------------

    @classmethod
    def recover(cls, pages, page_bytes, slot, chain_id, tail_word, *, incarnation, owners, page_indexes=None):
        cdef Chain chain = Chain(
            pages, page_bytes, slot, chain_id, tail_word, incarnation=incarnation, owners=owners
        )
        find_pages(chain, page_indexes)
        find_entries(chain)
        return chain

    def __repr__(self):
        return f"<Chain {self.slot}/{self.chain_id} tail={self.accepted} live={self.live} pages={self.linked}>"
