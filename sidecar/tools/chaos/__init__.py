"""``kafka-sidecar chaos``: a workload, faults by a seeded plan, and a ledger of every record's outcome.

The plan knows no other part, and its clients only the stub's public API.
"""
