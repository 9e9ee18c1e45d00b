# BatchRecords: the records of one ProducerBatch.

@cython.final
@cython.freelist(64)
cdef class BatchRecords:
    cdef readonly uint32_t count
    cdef readonly int64_t first_timestamp_ms
    cdef readonly int64_t max_timestamp_ms
    cdef int64_t records_bytes
    cdef list blocks
    cdef Slice *slices
    cdef Py_ssize_t slice_capacity
    cdef Py_ssize_t slice_total
    cdef bint done

    def __cinit__(self):
        self.blocks = []
        self.slices = NULL

    def __dealloc__(self):
        free(self.slices)

    @property
    def size_bytes(self):
        return BATCH_HEADER + self.records_bytes

    @property
    def slice_count(self):
        return self.slice_total

    cdef RecordBlock block_at(self, Py_ssize_t slice_index):
        if slice_index < 0 or slice_index >= self.slice_total:
            raise IndexError(f"slice {slice_index} of {self.slice_total}")
        return <RecordBlock> self.blocks[slice_index]

    def slice_entry(self, slice_index):
        return self.block_at(slice_index).entry

    def slice_records(self, slice_index):
        self.block_at(slice_index)
        return self.slices[<Py_ssize_t> slice_index].stop - self.slices[<Py_ssize_t> slice_index].start

    def slice_indexes(self, slice_index):
        cdef RecordBlock block = self.block_at(slice_index)
        cdef Slice piece = self.slices[<Py_ssize_t> slice_index]
        cdef uint32_t i
        return [block.refs[i].index for i in range(piece.start, piece.stop)]

    def slice_payload(self, slice_index):
        cdef RecordBlock block = self.block_at(slice_index)
        cdef Slice piece = self.slices[<Py_ssize_t> slice_index]
        cdef uint64_t payload_at = entry_payload_at(block.entry)
        cdef int64_t total = 0
        cdef uint32_t i
        cdef bytes payload
        cdef uint8_t *out
        check_member(block.chain, block.entry)
        for i in range(piece.start, piece.stop):
            total += block.refs[i].extent
        payload = PyBytes_FromStringAndSize(NULL, total)
        out = <uint8_t *> PyBytes_AS_STRING(payload)
        for i in range(piece.start, piece.stop):
            if not block.chain.copy_out(payload_at + block.refs[i].offset, out, block.refs[i].extent):
                raise ValueError(f"a page of {block.entry!r} is gone")
            out += block.refs[i].extent
        return payload

    @property
    def first_cursor(self):
        cdef RecordBlock block = self.block_at(0)
        return block.entry.position // LINE, block.refs[self.slices[0].start].index

    @property
    def last_cursor(self):
        cdef RecordBlock block = self.block_at(max(self.slice_total - 1, 0))
        return block.entry.position // LINE, block.refs[self.slices[self.slice_total - 1].stop - 1].index

    def try_append(self, RecordBlock block not None, start, stop, limit_bytes):
        cdef uint32_t begin, i, end
        cdef int64_t limit = min(<object> limit_bytes, 0x7fffffff) - BATCH_HEADER
        if not 0 <= start <= stop <= block.ref_count:
            raise ValueError(f"references {start}:{stop} of a block with {block.ref_count}")
        begin = start
        end = stop
        i = self.take(block, begin, end, limit)
        if i > begin:
            self.add_slice(block, begin, i)
        return i - begin

    cdef uint32_t take(self, RecordBlock block, uint32_t begin, uint32_t end, int64_t limit) noexcept:
        """How far the references fit; sizes, count and timestamps follow."""
        cdef int64_t total = self.records_bytes, size, timestamp = block.entry.base_timestamp_ms
        cdef int64_t maximum = self.max_timestamp_ms, delta
        cdef uint32_t i = begin, count = self.count
        if begin < end and count == 0:
            self.first_timestamp_ms = block_timestamp(block, begin)
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
        self.count = count
        return i

    cdef int add_slice(self, RecordBlock block, uint32_t start, uint32_t stop) except -1:
        cdef Slice *grown
        cdef Slice *last
        cdef Py_ssize_t capacity
        if self.slice_total and self.blocks[self.slice_total - 1] is block:
            last = self.slices + self.slice_total - 1
            if last.stop == start:
                last.stop = stop
                return 0
        if self.slice_total == self.slice_capacity:
            capacity = max(4, 2 * self.slice_capacity)
            grown = <Slice *> realloc(self.slices, capacity * sizeof(Slice))
            if grown == NULL:
                raise MemoryError()
            self.slices = grown
            self.slice_capacity = capacity
        self.blocks.append(block)
        self.slices[self.slice_total].start = start
        self.slices[self.slice_total].stop = stop
        self.slices[self.slice_total].before = self.count - (stop - start)
        self.slice_total += 1
        return 0

    cdef int encode(self, uint8_t *out, int64_t room) except -1:
        """The records section, exactly ``records_bytes``."""
        cdef Scratch scratch
        cdef Py_ssize_t i = 0
        cdef RecordBlock block
        cdef Chain chain
        cdef Slice piece
        cdef int64_t first = self.first_timestamp_ms
        cdef uint8_t *at = out
        cdef uint8_t *end = out + self.records_bytes
        if self.count == 0:
            raise ValueError("an empty batch has no bytes")
        if room < self.records_bytes:
            raise ValueError(f"{self.records_bytes} bytes of records do not fit into {room}")
        scratch = take_scratch()
        for i in range(self.slice_total):
            block = <RecordBlock> self.blocks[i]
            chain = block.chain
            piece = self.slices[i]
            if piece.stop - piece.start >= NOGIL_RECORDS:
                with nogil:
                    at = encode_slice(block, chain, piece, first, at, end, &scratch)
            else:
                at = encode_slice(block, chain, piece, first, at, end, &scratch)
            if at == NULL:
                break
        give_scratch(scratch)
        if at != end:
            raise ValueError(f"records of slice {i} are not in the journal as they were indexed (ENCODE_MISMATCH)")
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

    def split(self):
        cdef BatchRecords first = BatchRecords(), second = BatchRecords()
        cdef uint32_t half = self.count - self.count // 2, cut
        cdef Py_ssize_t i = 0
        if self.count < 2:
            raise ValueError(f"a batch of {self.count} records cannot be split")
        for i in range(self.slice_total):
            cut = self.slices[i].start + min(
                self.slices[i].stop - self.slices[i].start, half - min(half, self.slices[i].before)
            )
            first.try_append(self.blocks[i], self.slices[i].start, cut, 0x7fffffff)
            second.try_append(self.blocks[i], cut, self.slices[i].stop, 0x7fffffff)
        return first, second

    def select(self, indexes):
        cdef BatchRecords chosen = BatchRecords()
        cdef Py_ssize_t i = 0
        cdef int64_t last = -1, position
        cdef uint32_t ref
        for position in indexes:
            if position <= last or position >= self.count:
                raise ValueError(f"record {position} after {last} of {self.count}: ascending positions are needed")
            last = position
            while position >= self.slices[i].before + (self.slices[i].stop - self.slices[i].start):
                i += 1
            ref = self.slices[i].start + <uint32_t> (position - self.slices[i].before)
            chosen.try_append(self.blocks[i], ref, ref + 1, 0x7fffffff)
        return chosen

    def entries(self):
        cdef list found = []
        cdef Py_ssize_t i = 0
        for i in range(self.slice_total):
            found.append(((<RecordBlock> self.blocks[i]).entry, self.slices[i].stop - self.slices[i].start))
        return found

    def outcomes(self, slice_index, *, number, kind, persistence, code, partition, base_offset, append_time_ms,
                 text=b""):
        cdef RecordBlock block = self.block_at(slice_index)
        cdef Slice piece = self.slices[<Py_ssize_t> slice_index]
        cdef uint32_t records = piece.stop - piece.start
        cdef uint32_t first = block.refs[piece.start].index
        cdef uint32_t last = block.refs[piece.stop - 1].index
        cdef uint32_t shape, bit, i
        cdef Py_ssize_t index_bytes = 0, text_bytes = len(text), length
        cdef int64_t offset = base_offset
        cdef bytes outcome
        cdef uint8_t *out
        if not block.entry.flags & WANT_INDEXES:
            shape = 3
        elif last - first + 1 == records:
            shape = 0
        elif (last - first) // 8 + 1 <= 2 * records:
            shape = 1
            index_bytes = (last - first) // 8 + 1
        else:
            shape = 2
            index_bytes = 2 * records
        if text_bytes > 0xFFFF:
            raise ValueError(f"an outcome's text has at most 65535 bytes, not {text_bytes}")
        length = (OUTCOME_HEADER + index_bytes + text_bytes + 7) & ~7
        outcome = PyBytes_FromStringAndSize(NULL, length)
        out = <uint8_t *> PyBytes_AS_STRING(outcome)
        memset(out, 0, length)
        (<uint32_t *> out)[0] = <uint32_t> length
        out[4] = kind
        out[5] = persistence
        out[6] = <uint8_t> shape
        (<uint64_t *> (out + 8))[0] = number
        (<uint32_t *> (out + 16))[0] = block.entry.stream
        (<int32_t *> (out + 20))[0] = code
        (<uint64_t *> (out + 24))[0] = block.entry.seq
        (<uint32_t *> (out + 32))[0] = partition
        (<uint32_t *> (out + 36))[0] = first
        (<uint32_t *> (out + 40))[0] = records
        (<uint16_t *> (out + 44))[0] = <uint16_t> index_bytes
        (<uint16_t *> (out + 46))[0] = <uint16_t> text_bytes
        (<int64_t *> (out + 48))[0] = offset + piece.before if offset >= 0 else offset
        (<int64_t *> (out + 56))[0] = append_time_ms
        out += OUTCOME_HEADER
        if shape == 1:
            for i in range(piece.start, piece.stop):
                bit = block.refs[i].index - first
                out[bit >> 3] |= 1 << (bit & 7)
        elif shape == 2:
            for i in range(piece.start, piece.stop):
                (<uint16_t *> out)[i - piece.start] = block.refs[i].index
        memcpy(out + index_bytes, PyBytes_AS_STRING(text), text_bytes)
        return outcome

    def mark_failed(self, code):
        cdef Py_ssize_t i = 0
        check_failure_code(code)
        for i in range(self.slice_total):
            mark_slice(<RecordBlock> self.blocks[i], self.slices[i].start, self.slices[i].stop, code)

    def mark_done(self):
        cdef Py_ssize_t i = 0
        cdef RecordBlock block
        cdef uint32_t finished = 0
        for i in range(self.slice_total):
            block = <RecordBlock> self.blocks[i]
            if block.entry.remaining == 0:
                continue
            finished += block.chain.settle(
                block.entry, mark_slice(block, self.slices[i].start, self.slices[i].stop, WORD_DONE)
            )
        return finished

    def __repr__(self):
        return f"<BatchRecords {self.count} records, {self.size_bytes} bytes, {self.slice_total} slices>"
