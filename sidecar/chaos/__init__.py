"""``kafka-sidecar chaos``: a workload, faults by a seeded plan, and a ledger of what became of every record.

The plan knows of nothing else, and its clients only of the stub's front door.
"""
