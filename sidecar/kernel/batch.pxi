# BatchRecords: the records of one ProducerBatch.

cdef struct OutcomeHeader:            # client_stub/contract/wire.py draws it
    uint32_t length
    uint8_t kind
    uint8_t persistence
    uint8_t shape
    uint8_t zero
    uint64_t number
    uint32_t stream
    int32_t code
    uint64_t seq
    uint32_t partition
    uint32_t first_index
    uint32_t count
    uint16_t index_bytes
    uint16_t text_bytes
    int64_t base_offset
    int64_t append_time_ms

assert sizeof(OutcomeHeader) == OUTCOME_HEADER


@cython.final
@cython.freelist(64)
@cython.no_gc
cdef class BatchRecords:
    cdef readonly uint32_t count
    cdef readonly int64_t first_timestamp_ms
    cdef readonly int64_t max_timestamp_ms
    cdef int64_t records_bytes
    cdef Chain chain
    cdef Ref *refs                    # ``count`` of them
    cdef uint32_t ref_capacity
    cdef int64_t *timestamps          # per reference; NULL when all have their entry's base timestamp
    cdef Slice *slices                # what it has of each entry
    cdef Py_ssize_t slice_capacity
    cdef Py_ssize_t slice_total

    def __cinit__(self):
        self.refs = NULL
        self.timestamps = NULL
        self.slices = NULL

    def __dealloc__(self):
        free(self.refs)
        free(self.timestamps)
        free(self.slices)

    @property
    def size_bytes(self):
        return BATCH_HEADER + self.records_bytes

    @property
    def slice_count(self):
        return self.slice_total

    cdef Py_ssize_t slice_at(self, slice_index) except -1:
        if not 0 <= slice_index < self.slice_total:
            raise IndexError(f"slice {slice_index} of {self.slice_total}")
        return slice_index

    cdef inline uint32_t slice_stop(self, Py_ssize_t i) noexcept nogil:
        return self.slices[i + 1].start if i + 1 < self.slice_total else self.count

    cdef EntryHeader *slice_header(self, Py_ssize_t i) except NULL:
        """Header of a slice's entry. The entry is live until the slice's own records are done."""
        if self.chain.left_of(self.slices[i].position) == 0:
            raise ValueError(f"entry {self.slices[i].position // LINE} of {self.chain!r} has ended")
        return self.chain.header_at(self.slices[i].position)

    def slice_entry(self, slice_index):
        cdef Py_ssize_t i = self.slice_at(slice_index)
        self.slice_header(i)
        return self.chain.view(self.slices[i].position)

    def slice_records(self, slice_index):
        cdef Py_ssize_t i = self.slice_at(slice_index)
        return self.slice_stop(i) - self.slices[i].start

    def slice_share(self, slice_index):
        cdef Py_ssize_t i = self.slice_at(slice_index)
        cdef EntryHeader *header = self.slice_header(i)
        cdef uint32_t records = self.slice_stop(i) - self.slices[i].start
        return (
            header.client_row, header.client_generation, records,
            held_bytes_of(header.count, header.payload_bytes) * records // header.count
        )

    def slice_indexes(self, slice_index):
        cdef Py_ssize_t i = self.slice_at(slice_index)
        cdef uint32_t ref
        return [self.refs[ref].index for ref in range(self.slices[i].start, self.slice_stop(i))]

    def slice_payload(self, slice_index):
        cdef Py_ssize_t piece = self.slice_at(slice_index)
        cdef EntryHeader *header = self.slice_header(piece)
        cdef uint64_t begin = payload_at(self.slices[piece].position, header.count)
        cdef int64_t total = 0
        cdef uint32_t i
        cdef bytes payload
        cdef uint8_t *out
        for i in range(self.slices[piece].start, self.slice_stop(piece)):
            total += self.refs[i].extent
        payload = PyBytes_FromStringAndSize(NULL, total)
        out = <uint8_t *> PyBytes_AS_STRING(payload)
        for i in range(self.slices[piece].start, self.slice_stop(piece)):
            if not self.chain.copy_out(begin + self.refs[i].offset, out, self.refs[i].extent):
                raise ValueError(f"a page of entry {self.slices[piece].position // LINE} of {self.chain!r} is gone")
            out += self.refs[i].extent
        return payload

    @property
    def first_cursor(self):
        return self.slices[self.slice_at(0)].position // LINE, self.refs[0].index

    @property
    def last_cursor(self):
        cdef Py_ssize_t i = self.slice_at(max(self.slice_total - 1, 0))
        return self.slices[i].position // LINE, self.refs[self.count - 1].index

    def try_append(self, RecordBlock block not None, start, stop, limit_bytes, double since_ms=0.0):
        cdef uint32_t begin, end, fit
        cdef int64_t limit = min(<object> limit_bytes, 0x7fffffff) - BATCH_HEADER
        if not 0 <= start <= stop <= block.ref_count:
            raise ValueError(f"references {start}:{stop} of a block with {block.ref_count}")
        begin = start
        end = stop
        fit = self.fitting(block, begin, end, limit)
        if fit > begin:
            self.take(block, begin, fit, tenths(since_ms))
        if fit < end:
            self.trim()
        return fit - begin

    cdef uint32_t fitting(self, RecordBlock block, uint32_t begin, uint32_t end, int64_t limit) noexcept:
        """Return the end of the references that fit; size and timestamps are updated."""
        cdef int64_t total = self.records_bytes, size, timestamp = block.base_timestamp_ms
        cdef int64_t maximum = self.max_timestamp_ms, delta
        cdef uint32_t i = begin, count = self.count
        if begin < end and count == 0:
            self.first_timestamp_ms = block.timestamp_of(begin)
            maximum = self.first_timestamp_ms
        delta = varint_size(timestamp - self.first_timestamp_ms)
        while i < end and count < 0x7fffffff:
            if block.timestamps != NULL:
                timestamp = block.timestamps[i]
                delta = varint_size(timestamp - self.first_timestamp_ms)
            size = 1 + delta + varint_size(count) + block.refs[i].body_bytes
            size += varint_size(size)
            if total + size > limit and count:
                break
            total += size
            maximum = max(maximum, timestamp)
            count += 1
            i += 1
        self.records_bytes = total
        self.max_timestamp_ms = maximum
        return i

    cdef int take(self, RecordBlock block, uint32_t begin, uint32_t end, uint32_t taken) except -1:
        """Copy the references, one slice per entry."""
        cdef uint32_t i, more = end - begin
        cdef uint64_t position
        if self.chain is None:
            self.chain = block.chain
        elif self.chain is not block.chain:
            raise ValueError(f"a batch of {self.chain!r} takes nothing of {block.chain!r}")
        self.reserve(self.count + more)
        if block.own_timestamps and self.timestamps == NULL:
            self.keep_timestamps()
        memcpy(self.refs + self.count, block.refs + begin, more * sizeof(Ref))
        if self.timestamps != NULL:
            for i in range(more):
                self.timestamps[self.count + i] = block.timestamp_of(begin + i)
        if block.positions == NULL:
            self.begin_slice(block.position, self.count, taken)
        else:
            position = NO_POSITION
            for i in range(begin, end):
                if block.positions[i] != position:
                    position = block.positions[i]
                    self.begin_slice(position, self.count + (i - begin), taken)
        self.count += more
        return 0

    cdef int begin_slice(self, uint64_t position, uint32_t start, uint32_t taken) except -1:
        """Begin the slice of an entry, whose references begin at ``start``."""
        cdef Slice *grown
        cdef Py_ssize_t capacity
        if self.slice_total and self.slices[self.slice_total - 1].position == position:
            if self.refs[start - 1].index < self.refs[start].index:
                return 0
        if self.slice_total == self.slice_capacity:
            capacity = max(4, 2 * self.slice_capacity)
            grown = <Slice *> realloc(self.slices, capacity * sizeof(Slice))
            if grown == NULL:
                raise MemoryError()
            self.slices = grown
            self.slice_capacity = capacity
        self.slices[self.slice_total].position = position
        self.slices[self.slice_total].start = start
        self.slices[self.slice_total].taken = taken
        self.slice_total += 1
        return 0

    cdef int reserve(self, uint32_t total) except -1:
        cdef uint32_t capacity = self.ref_capacity
        cdef void *grown
        if total <= capacity:
            return 0
        capacity = max(max(total, 4), min(2 * <uint64_t> capacity, 0x7fffffff))
        grown = realloc(self.refs, capacity * sizeof(Ref))
        if grown == NULL:
            raise MemoryError()
        self.refs = <Ref *> grown
        if self.timestamps != NULL:
            grown = realloc(self.timestamps, capacity * sizeof(int64_t))
            if grown == NULL:
                raise MemoryError()
            self.timestamps = <int64_t *> grown
        self.ref_capacity = capacity
        return 0

    cdef int keep_timestamps(self) except -1:
        """Allocate timestamps at the first record with a timestamp of its own. Earlier records have their entry's."""
        cdef Py_ssize_t i
        cdef uint32_t ref
        cdef int64_t timestamp
        self.timestamps = <int64_t *> malloc(self.ref_capacity * sizeof(int64_t))
        if self.timestamps == NULL:
            raise MemoryError()
        for i in range(self.slice_total):
            timestamp = self.slice_header(i).base_timestamp_ms
            for ref in range(self.slices[i].start, self.slice_stop(i)):
                self.timestamps[ref] = timestamp
        return 0

    cdef void trim(self) noexcept:
        """Return unused memory when the batch is full."""
        cdef void *trimmed = realloc(self.refs, self.count * sizeof(Ref))
        if trimmed != NULL:
            self.refs = <Ref *> trimmed
            self.ref_capacity = self.count
        trimmed = realloc(self.slices, self.slice_total * sizeof(Slice))
        if trimmed != NULL:
            self.slices = <Slice *> trimmed
            self.slice_capacity = self.slice_total

    cdef uint8_t *encode_all(self, uint8_t *out, Scratch *scratch) noexcept nogil:
        """Encode all records. Returns the end of the output, or NULL if the records differ from the indexed ones."""
        cdef Py_ssize_t i
        cdef uint8_t *end = out + self.records_bytes
        for i in range(self.slice_total):
            if i + 4 < self.slice_total:
                # With one record per submission, its header, word and payload are in no cache, each access depends on
                # the one before it.
                prefetch(<const uint8_t *> self.chain.header_at(self.slices[i + 4].position))
            out = encode_slice(
                self.chain, self.slices[i].position, self.refs, self.timestamps, self.slices[i].start,
                self.slice_stop(i), self.first_timestamp_ms, out, end, scratch
            )
            if out == NULL:
                return NULL
        return out

    cdef int encode(self, uint8_t *out, int64_t room) except -1:
        """Write the records section, exactly ``records_bytes`` long."""
        cdef Scratch scratch
        cdef uint8_t *at
        if self.count == 0:
            raise ValueError("an empty batch has no bytes")
        if room < self.records_bytes:
            raise ValueError(f"{self.records_bytes} bytes of records do not fit into {room}")
        scratch = take_scratch()
        if self.count >= NOGIL_RECORDS:
            with nogil:
                at = self.encode_all(out, &scratch)
        else:
            at = self.encode_all(out, &scratch)
        give_scratch(scratch)
        if at != out + self.records_bytes:
            raise ValueError("its records are not in the journal as they were indexed (ENCODE_MISMATCH)")
        return 0

    def encode_into(self, out, producer_id, epoch, base_sequence, attributes=0):
        cdef HeldBuffer buffer = hold(out, True)
        cdef uint8_t *start = <uint8_t *> buffer.view.buf
        if buffer.view.len < BATCH_HEADER + self.records_bytes:
            raise ValueError(f"a batch of {self.size_bytes} bytes does not fit into {buffer.view.len}")
        self.encode(start + BATCH_HEADER, buffer.view.len - BATCH_HEADER)
        put_batch_header(
            start, BATCH_HEADER + self.records_bytes, producer_id, epoch, base_sequence, attributes, self.count,
            self.first_timestamp_ms, self.max_timestamp_ms
        )
        return BATCH_HEADER + self.records_bytes

    def encode_records_into(self, out):
        cdef HeldBuffer buffer = hold(out, True)
        self.encode(<uint8_t *> buffer.view.buf, buffer.view.len)
        return self.records_bytes

    cdef int take_from(self, BatchRecords other, uint32_t begin, uint32_t end) except -1:
        """Take records of another batch of the chain. They always fit."""
        cdef uint32_t i
        cdef Py_ssize_t piece = 0
        cdef int64_t timestamp, size
        self.chain = other.chain
        self.reserve(self.count + (end - begin))
        if other.timestamps != NULL and self.timestamps == NULL:
            self.keep_timestamps()
        # The last slice that begins at ``begin`` or before it.
        cdef Py_ssize_t low = 0, high = other.slice_total, middle
        while high - low > 1:
            middle = low + (high - low) // 2
            if other.slices[middle].start <= begin:
                low = middle
            else:
                high = middle
        piece = low
        for i in range(begin, end):
            while i >= other.slice_stop(piece):
                piece += 1
            timestamp = (
                other.timestamps[i] if other.timestamps != NULL else other.slice_header(piece).base_timestamp_ms
            )
            if self.count == 0:
                self.first_timestamp_ms = self.max_timestamp_ms = timestamp
            self.max_timestamp_ms = max(self.max_timestamp_ms, timestamp)
            size = 1 + varint_size(timestamp - self.first_timestamp_ms) + varint_size(self.count)
            size += other.refs[i].body_bytes
            self.records_bytes += size + varint_size(size)
            self.refs[self.count] = other.refs[i]
            if self.timestamps != NULL:
                self.timestamps[self.count] = timestamp
            self.begin_slice(other.slices[piece].position, self.count, other.slices[piece].taken)
            self.count += 1
        return 0

    def split(self):
        cdef BatchRecords first = BatchRecords(), second = BatchRecords()
        cdef uint32_t half = self.count - self.count // 2
        if self.count < 2:
            raise ValueError(f"a batch of {self.count} records cannot be split")
        first.take_from(self, 0, half)
        second.take_from(self, half, self.count)
        return first, second

    def select(self, indexes):
        cdef BatchRecords chosen = BatchRecords()
        cdef int64_t last = -1, position
        for position in indexes:
            if position <= last or position >= self.count:
                raise ValueError(f"record {position} after {last} of {self.count}: ascending positions are needed")
            last = position
            chosen.take_from(self, <uint32_t> position, <uint32_t> position + 1)
        return chosen

    def entries(self):
        return [(self.slice_entry(i), self.slice_records(i)) for i in range(self.slice_total)]

    def shares(self):
        cdef dict found = {}
        cdef EntryHeader *header
        cdef Py_ssize_t i
        cdef uint32_t records
        for i in range(self.slice_total):
            header = self.slice_header(i)
            records = self.slice_stop(i) - self.slices[i].start
            key = (header.client_row, header.client_generation)
            before = found.get(key, (0, 0))
            found[key] = (
                before[0] + records, before[1] + held_bytes_of(header.count, header.payload_bytes) * records // header.count
            )
        return found

    def outcomes(self, slice_index, *, number, kind, persistence, code, partition, base_offset, append_time_ms,
                 text=b""):
        cdef Py_ssize_t piece = self.slice_at(slice_index)
        cdef EntryHeader *header = self.slice_header(piece)
        cdef uint32_t start = self.slices[piece].start, stop = self.slice_stop(piece)
        cdef uint32_t records = stop - start
        cdef uint32_t first = self.refs[start].index
        cdef uint32_t last = self.refs[stop - 1].index
        cdef uint32_t shape, bit, i
        cdef Py_ssize_t index_bytes = 0, text_bytes = len(text), length
        cdef int64_t offset = base_offset
        cdef bytes outcome
        cdef OutcomeHeader *head
        cdef uint8_t *out
        if not header.flags & WANT_INDEXES:
            shape = SHAPE_COUNT
        elif last - first + 1 == records:
            shape = SHAPE_RANGE
        elif (last - first) // 8 + 1 <= 2 * records:
            shape = SHAPE_BITMAP
            index_bytes = (last - first) // 8 + 1
        else:
            shape = SHAPE_LIST
            index_bytes = 2 * records
        if text_bytes > 0xFFFF:
            raise ValueError(f"an outcome's text has at most 65535 bytes, not {text_bytes}")
        length = (OUTCOME_HEADER + index_bytes + text_bytes + 7) & ~7
        outcome = PyBytes_FromStringAndSize(NULL, length)
        out = <uint8_t *> PyBytes_AS_STRING(outcome)
        memset(out, 0, length)
        head = <OutcomeHeader *> out
        head.length = <uint32_t> length
        head.kind = kind
        head.persistence = persistence
        head.shape = <uint8_t> shape
        head.number = number
        head.stream = header.stream
        head.code = code
        head.seq = header.seq
        head.partition = partition
        head.first_index = first
        head.count = records
        head.index_bytes = <uint16_t> index_bytes
        head.text_bytes = <uint16_t> text_bytes
        head.base_offset = offset + start if offset >= 0 else offset
        head.append_time_ms = append_time_ms
        out += OUTCOME_HEADER
        if shape == SHAPE_BITMAP:
            for i in range(start, stop):
                bit = self.refs[i].index - first
                out[bit >> 3] |= 1 << (bit & 7)
        elif shape == SHAPE_LIST:
            for i in range(start, stop):
                (<uint16_t *> out)[i - start] = self.refs[i].index
        memcpy(out + index_bytes, PyBytes_AS_STRING(text), text_bytes)
        return outcome

    def mark_failed(self, code):
        cdef Py_ssize_t i
        check_failure_code(code)
        for i in range(self.slice_total):
            mark_slice(self.chain, self.slices[i].position, self.refs, self.slices[i].start, self.slice_stop(i), code)

    def mark_done(self):
        cdef Py_ssize_t i
        cdef uint64_t position
        cdef uint32_t finished = 0
        for i in range(self.slice_total):
            position = self.slices[i].position
            if self.chain.left_of(position) == 0:
                continue
            finished += self.chain.settle(
                position,
                mark_slice(self.chain, position, self.refs, self.slices[i].start, self.slice_stop(i), WORD_DONE),
            )
        return finished

    def __repr__(self):
        return f"<BatchRecords {self.count} records, {self.size_bytes} bytes, {self.slice_total} slices>"
