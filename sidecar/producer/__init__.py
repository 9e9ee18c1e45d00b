"""The producer core: RecordAccumulator, ProducerBatch, Sender, producer ids. It decides, and returns effects to run.

Sans-IO: no sockets, no event loop and no clock. It knows neither the segment nor the worker that runs it.
"""
