# Chain: the journal's logical byte stream over pages, written by its one owner, read again by recovery.

cdef struct Window:
    # A stretch of the chain that is contiguous in memory: [begin, end) in chain positions.
    uint8_t *bytes
    uint64_t begin
    uint64_t end


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
    cdef uint32_t *page_of            # page index by page ordinal - first_page; NO_PAGE where released
    cdef uint32_t *page_live          # live entries that touch it
    cdef uint64_t first_page
    cdef Py_ssize_t span              # entries of the two arrays in use
    cdef Py_ssize_t capacity
    cdef Py_ssize_t linked
    cdef Py_ssize_t releasable
    cdef dict live                    # ordinal -> Entry
    cdef list finished                # (ordinal, log file, payload bytes) of ended entries that are in a log

    def __cinit__(self):
        self.page_of = NULL
        self.page_live = NULL

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
        self.live = {}
        self.finished = []
        self.damage = []
        self.accepted = load_acquire(self.tail_word)
        self.write_at = self.page_up(self.accepted)
        self.first_page = self.write_at // self.payload

    def __dealloc__(self):
        free(self.page_of)
        free(self.page_live)

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
        return len(self.live)

    @property
    def page_count(self):
        return self.linked

    def entries(self):
        return iter(list(self.live.values()))

    def take_finished(self):
        finished, self.finished = self.finished, []
        return finished

    # ---- pages -------------------------------------------------------------------------------------------------

    cdef inline uint8_t *page_at(self, uint64_t page_ordinal) noexcept nogil:
        """Start of a page of this chain, header included; NULL when it is not linked."""
        cdef uint32_t page
        if page_ordinal < self.first_page or page_ordinal - self.first_page >= <uint64_t> self.span:
            return NULL
        page = self.page_of[page_ordinal - self.first_page]
        if page == NO_PAGE:
            return NULL
        return self.pages + page * self.page_bytes

    cdef inline bint window(self, uint64_t position, Window *window) noexcept nogil:
        """The contiguous stretch around a position; False when its page is gone."""
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

    cdef int reserve(self, Py_ssize_t span) except -1:
        cdef Py_ssize_t capacity = max(8, self.capacity)
        cdef uint32_t *grown
        while capacity < span:
            capacity *= 2
        if capacity == self.capacity:
            return 0
        grown = <uint32_t *> realloc(self.page_of, capacity * sizeof(uint32_t))
        if grown == NULL:
            raise MemoryError()
        self.page_of = grown
        grown = <uint32_t *> realloc(self.page_live, capacity * sizeof(uint32_t))
        if grown == NULL:
            raise MemoryError()
        self.page_live = grown
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
            self.page_of[self.span] = page
            self.page_live[self.span] = 0
            self.span += 1
            self.linked += 1

    # ---- entries -----------------------------------------------------------------------------------------------

    cdef void touch(self, Entry entry, uint64_t size) noexcept:
        cdef uint64_t page = entry.position // self.payload - self.first_page
        cdef uint64_t last = (entry.position + size - 1) // self.payload - self.first_page
        while page <= last:
            self.page_live[page] += 1
            page += 1

    def append(self, payload, *, count, client_row, client_generation, stream, seq, base_timestamp_ms, format, flags,
               txn_number=0):
        cdef Py_buffer view
        cdef EntryHeader header
        cdef PageHeader *page
        cdef Entry entry
        cdef uint64_t position = self.write_at
        cdef uint64_t total, words_end, payload_at
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
            payload_at = position + ENTRY_HEADER + words_bytes(records)
            self.copy_in(position, <const uint8_t *> &header, ENTRY_HEADER)
            stored(AT_ENTRY_HEADER)
            self.fill_words(position + ENTRY_HEADER, records)
            self.copy_in(words_end, NULL, payload_at - words_end)
            stored(AT_ENTRY_WORDS)
            self.copy_in(payload_at, <const uint8_t *> view.buf, view.len)
            self.copy_in(payload_at + view.len, NULL, position + total - payload_at - view.len)
            stored(AT_ENTRY_PAYLOAD)
        finally:
            PyBuffer_Release(&view)
        page = <PageHeader *> self.page_at(position // self.payload)
        if page.first_entry_offset == NO_ENTRY:
            page.first_entry_ordinal = header.ordinal
            page.first_entry_offset = <uint32_t> (position % self.payload)
            stored(AT_PAGE_ENTRY)
        entry = self.remember(position, &header, records)
        # Accepted from here on: everything above was plain writes.
        store_release(self.tail_word, position + total)
        stored(AT_TAIL)
        self.accepted = position + total
        self.write_at = position + total
        return entry

    cdef void fill_words(self, uint64_t position, uint32_t count) noexcept:
        cdef Window window
        cdef uint64_t size = 2 * <uint64_t> count, part
        while size and self.window(position, &window):
            part = min(size, window.end - position)
            memset(window.bytes + (position - window.begin), 0xFF, part)
            position += part
            size -= part

    cdef Entry remember(self, uint64_t position, EntryHeader *header, uint32_t remaining):
        cdef Entry entry = Entry.__new__(Entry)
        entry.position = position
        entry.count = header.count
        entry.remaining = remaining
        entry.seq = header.seq
        entry.stream = header.stream
        entry.client_row = header.client_row
        entry.client_generation = header.client_generation
        entry.base_timestamp_ms = header.base_timestamp_ms
        entry.payload_bytes = header.payload_bytes
        entry.format = header.format
        entry.flags = header.flags
        entry.txn_number = header.txn_number
        entry.accepted_ms = 0.0
        entry.log_file = 0
        entry.chain_id = self.chain_id
        self.live[position // LINE] = entry
        self.live_records += remaining
        self.touch(entry, header.entry_bytes)
        return entry

    cdef bint settle(self, Entry entry, uint32_t records) except -1:
        """So many more words of the entry are done; True when that finished it."""
        cdef uint64_t page, last, size
        if records == 0:
            return False
        entry.remaining -= records
        self.live_records -= records
        if entry.remaining:
            return False
        del self.live[entry.position // LINE]
        if entry.log_file:
            self.finished.append((entry.position // LINE, entry.log_file, entry.payload_bytes))
        size = entry_bytes_of(entry.count, entry.payload_bytes)
        page = entry.position // self.payload
        last = (entry.position + size - 1) // self.payload
        while page <= last:
            self.page_live[page - self.first_page] -= 1
            if self.page_live[page - self.first_page] == 0 and (page + 1) * self.payload <= self.write_at:
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
            if self.page_live[i] == 0 and self.page_of[i] != NO_PAGE:
                released.append(self.page_of[i])
                self.page_of[i] = NO_PAGE
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
            if self.page_of[i] != NO_PAGE:
                released.append(self.page_of[i])
        # The next entry begins with a page of its own; readers know a missing page as a finished one.
        self.write_at = self.page_up(self.accepted)
        self.first_page = self.write_at // self.payload
        self.span = 0
        self.linked = 0
        self.releasable = 0
        return released

    cdef void trim(self) noexcept:
        """Forget released pages at the front."""
        cdef Py_ssize_t gone = 0
        while gone < self.span and self.page_of[gone] == NO_PAGE:
            gone += 1
        if gone == 0:
            return
        memmove(self.page_of, self.page_of + gone, (self.span - gone) * sizeof(uint32_t))
        memmove(self.page_live, self.page_live + gone, (self.span - gone) * sizeof(uint32_t))
        self.first_page += gone
        self.span -= gone

    # ---- recovery ----------------------------------------------------------------------------------------------

    @classmethod
    def recover(cls, pages, page_bytes, slot, chain_id, tail_word, *, incarnation, owners, page_indexes=None):
        cdef Chain chain = Chain(
            pages, page_bytes, slot, chain_id, tail_word, incarnation=incarnation, owners=owners
        )
        chain.find_pages(page_indexes)
        chain.find_entries()
        return chain

    cdef int find_pages(self, page_indexes) except -1:
        cdef PageHeader *header
        cdef dict found = {}
        cdef uint32_t page
        cdef uint64_t end = self.page_up(self.accepted) // self.payload
        for page in (range(self.pages_total) if page_indexes is None else page_indexes):
            if page >= self.pages_total:
                raise ValueError(f"page {page} is not one of {self.pages_total}")
            if load_acquire(self.owners + page) & 0xFFFFFFFF != LINKED:
                continue
            header = <PageHeader *> (self.pages + page * self.page_bytes)
            if header.slot != self.slot or header.chain_id != self.chain_id or header.ordinal >= end:
                continue
            if header.ordinal in found:
                self.damage.append(f"pages {found[header.ordinal]} and {page} both say they are page {header.ordinal}")
                continue
            found[header.ordinal] = page
        if not found:
            return 0
        self.first_page = min(found)
        self.reserve(<Py_ssize_t> (end - self.first_page))
        self.span = <Py_ssize_t> (end - self.first_page)
        self.linked = len(found)
        for i in range(self.span):
            self.page_of[i] = found.get(self.first_page + i, NO_PAGE)
            self.page_live[i] = 0
        if self.page_of[self.span - 1] != NO_PAGE:
            self.write_at = self.accepted
        return 0

    cdef int find_entries(self) except -1:
        cdef PageHeader *page
        cdef uint64_t ordinal, position, at = 0, end
        cdef Py_ssize_t i
        for i in range(self.span):
            ordinal = self.first_page + i
            page = <PageHeader *> self.page_at(ordinal)
            if page == NULL or page.first_entry_offset == NO_ENTRY:
                continue
            position = ordinal * self.payload + page.first_entry_offset
            end = min((ordinal + 1) * self.payload, self.accepted)
            if page.first_entry_offset >= self.payload or page.first_entry_offset % LINE:
                self.damage.append(f"page {ordinal} says its first entry begins at {page.first_entry_offset}")
                continue
            if position < at:
                self.damage.append(f"page {ordinal} says an entry begins inside the entry before it")
                continue
            while position < end:
                position = self.find_entry(position)
                at = position
                if position == 0:
                    break
        for i in range(<Py_ssize_t> (self.write_at // self.payload - self.first_page) if self.span else 0):
            if self.page_of[i] != NO_PAGE and self.page_live[i] == 0:
                self.releasable += 1
        return 0

    cdef uint64_t find_entry(self, uint64_t position) except? 0:
        """Read one entry's header and words; returns the position after it, 0 when it cannot be right."""
        cdef EntryHeader header
        cdef uint64_t page, last
        cdef uint32_t remaining = 0
        self.copy_out(position, <uint8_t *> &header, ENTRY_HEADER)
        if (
            header.ordinal != position // LINE
            or header.count == 0
            or header.count > header.payload_bytes
            or header.count > RECORDS_MAX
            or header.entry_bytes != entry_bytes_of(header.count, header.payload_bytes)
            or position + header.entry_bytes > self.accepted
        ):
            self.damage.append(f"the entry at position {position} has an impossible header")
            return 0
        page = position // self.payload
        last = (position + header.entry_bytes - 1) // self.payload
        while page <= last:
            if self.page_at(page) == NULL:
                # A page goes back only when every entry on it is finished.
                return position + header.entry_bytes
            page += 1
        remaining = self.count_words(position + ENTRY_HEADER, header.count)
        if remaining:
            self.remember(position, &header, remaining)
        return position + header.entry_bytes

    cdef uint32_t count_words(self, uint64_t position, uint32_t count) noexcept:
        """Words that are not done."""
        cdef Window window
        cdef uint32_t left = 0
        cdef uint32_t i
        memset(&window, 0, sizeof(window))
        for i in range(count):
            if position >= window.end:
                self.window(position, &window)
            if (<uint16_t *> (window.bytes + (position - window.begin)))[0] != WORD_DONE:
                left += 1
            position += 2
        return left

    def __repr__(self):
        return f"<Chain {self.slot}/{self.chain_id} tail={self.accepted} live={len(self.live)} pages={self.linked}>"
