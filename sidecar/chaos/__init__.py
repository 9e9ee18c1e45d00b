"""``kafka-sidecar chaos``: a workload, faults by a seeded plan, and a ledger of what became of every record."""
