# Recovery: rebuilds a chain from its pages and tail, and sums up its streams. Changes nothing.

cdef int find_pages(Chain chain, page_indexes) except -1:
    cdef PageHeader *header
    cdef dict found = {}
    cdef uint32_t page
    cdef uint64_t end = chain.page_up(chain.accepted) // chain.payload
    for page in (range(chain.pages_total) if page_indexes is None else page_indexes):
        if page >= chain.pages_total:
            raise ValueError(f"page {page} is not one of {chain.pages_total}")
        if load_acquire(chain.owners + page) & 0xFFFFFFFF != LINKED:
            continue
        header = <PageHeader *> (chain.pages + page * chain.page_bytes)
        if header.slot != chain.slot or header.chain_id != chain.chain_id or header.ordinal >= end:
            continue
        if header.ordinal in found:
            chain.damage.append(f"pages {found[header.ordinal]} and {page} both say they are page {header.ordinal}")
            continue
        found[header.ordinal] = page
    if not found:
        return 0
    chain.first_page = min(found)
    chain.reserve(<Py_ssize_t> (end - chain.first_page))
    chain.span = <Py_ssize_t> (end - chain.first_page)
    chain.linked = len(found)
    memset(chain.uses, 0, chain.span * sizeof(PageUse))
    for i in range(chain.span):
        chain.uses[i].page = found.get(chain.first_page + i, NO_PAGE)
    if chain.uses[chain.span - 1].page != NO_PAGE:
        chain.write_at = chain.accepted
    return 0


cdef int find_entries(Chain chain) except -1:
    cdef PageHeader *page
    cdef uint64_t ordinal, position, at = 0, end
    cdef Py_ssize_t i
    for i in range(chain.span):
        ordinal = chain.first_page + i
        page = <PageHeader *> chain.page_at(ordinal)
        if page == NULL or page.first_entry_offset == NO_ENTRY:
            continue
        position = ordinal * chain.payload + page.first_entry_offset
        end = min((ordinal + 1) * chain.payload, chain.accepted)
        if page.first_entry_offset >= chain.payload or page.first_entry_offset % LINE:
            chain.damage.append(f"page {ordinal} says its first entry begins at {page.first_entry_offset}")
            continue
        if position < at:
            chain.damage.append(f"page {ordinal} says an entry begins inside the entry before it")
            continue
        while position < end:
            position = find_entry(chain, position)
            at = position
            if position == 0:
                break
    for i in range(<Py_ssize_t> (chain.write_at // chain.payload - chain.first_page) if chain.span else 0):
        if chain.uses[i].page != NO_PAGE and chain.uses[i].live == 0:
            chain.releasable += 1
    return 0


cdef uint64_t find_entry(Chain chain, uint64_t position) except? 0:
    """Read one entry's header and words. Returns the position after it, 0 if it cannot be valid."""
    cdef EntryHeader header
    cdef uint64_t page, last
    cdef uint32_t remaining = 0
    chain.copy_out(position, <uint8_t *> &header, ENTRY_HEADER)
    if (
        header.ordinal != position // LINE
        or header.count == 0
        or header.count > header.payload_bytes
        or header.count > RECORDS_MAX
        or header.entry_bytes != entry_bytes_of(header.count, header.payload_bytes)
        or position + header.entry_bytes > chain.accepted
    ):
        chain.damage.append(f"the entry at position {position} has an impossible header")
        return 0
    page = position // chain.payload
    last = (position + header.entry_bytes - 1) // chain.payload
    while page <= last:
        if chain.page_at(page) == NULL:
            # A page goes back only when every entry on it is finished.
            return position + header.entry_bytes
        page += 1
    remaining = count_words(chain, position + ENTRY_HEADER, header.count)
    if remaining:
        chain.remember(position, &header, remaining)
    return position + header.entry_bytes


cdef uint32_t count_words(Chain chain, uint64_t position, uint32_t count) noexcept:
    """Number of words that are not done."""
    cdef Window window
    cdef uint32_t left = 0
    cdef uint32_t i
    memset(&window, 0, sizeof(window))
    for i in range(count):
        if position >= window.end:
            chain.window(position, &window)
        if (<uint16_t *> (window.bytes + (position - window.begin)))[0] != WORD_DONE:
            left += 1
        position += 2
    return left


cdef struct StreamSum:
    # Records and position of one stream of one client in the chain.
    uint32_t client_row
    uint32_t client_generation
    uint32_t stream
    uint64_t seq             # the last
    uint64_t records         # not done
    uint64_t held_bytes      # their share of the bytes that the entries occupy


cdef inline bint is_stream(const StreamSum *known, const EntryHeader *header) noexcept nogil:
    return (
        known.client_row == header.client_row
        and known.stream == header.stream
        and known.client_generation == header.client_generation
    )


cdef list sums_of_streams(Chain chain):
    """Sums over every stream. A direct-mapped table in front of the dictionary saves most lookups."""
    cdef StreamSum *sums = NULL
    cdef StreamSum *grown
    cdef Py_ssize_t total = 0, capacity = 0, place
    cdef Py_ssize_t near[256]
    cdef dict places = {}
    cdef EntryHeader *header
    cdef uint32_t left
    cdef uint64_t position
    cdef int slot
    memset(near, 0xFF, sizeof(near))
    try:
        position = chain.next_live(0)
        while position != NO_POSITION:
            header = chain.header_at(position)
            left = chain.left_of(position)
            slot = (header.client_row * 31 + header.stream) & 255
            place = near[slot]
            if place < 0 or not is_stream(sums + place, header):
                key = (header.client_row, header.client_generation, header.stream)
                found = places.get(key)
                if found is None:
                    if total == capacity:
                        capacity = max(64, 2 * capacity)
                        grown = <StreamSum *> realloc(sums, capacity * sizeof(StreamSum))
                        if grown == NULL:
                            raise MemoryError()
                        sums = grown
                    memset(sums + total, 0, sizeof(StreamSum))
                    sums[total].client_row = header.client_row
                    sums[total].client_generation = header.client_generation
                    sums[total].stream = header.stream
                    found = places[key] = total
                    total += 1
                place = near[slot] = found
            sums[place].seq = max(sums[place].seq, header.seq)
            sums[place].records += left
            sums[place].held_bytes += held_bytes_of(header.count, header.payload_bytes) * left // header.count
            position = chain.next_live(position + LINE)
        return [
            (sums[i].client_row, sums[i].client_generation, sums[i].stream, sums[i].seq, sums[i].records,
             sums[i].held_bytes)
            for i in range(total)
        ]
    finally:
        free(sums)
