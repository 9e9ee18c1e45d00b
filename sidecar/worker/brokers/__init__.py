"""A worker's side of the brokers: requests out, answers in, questions about lost answers.

It carries out decisions of the core. It must not touch stubs, topics or outcomes.
"""
