"""A worker's dealings with brokers: requests out, answers in, questions about lost answers.

It must not touch stubs, topics or fates: it works for the core, which decides.
"""
