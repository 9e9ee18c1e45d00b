"""The core: RecordAccumulator, ProducerBatch, Sender, producer ids. It decides, and returns effects to be run.

Sans-IO: no sockets, no loop, no clock, and it knows neither the segment nor the worker that runs it.
"""
