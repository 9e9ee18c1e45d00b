"""What AsyncProducer needs beyond the engine: futures of a loop, and calls that wait on it.

It blocks no loop and adds no thread.
"""
