"""Transactions: transactional ids of this worker's clients, their requests to coordinators, and their frames.

Must not touch: connections of other rooms, batches and their outcomes. What leaves when is decided by the core.
"""
