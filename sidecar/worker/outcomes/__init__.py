"""The end of a record after its outcome is decided: facts in the journal, outcomes in rings, dead letters.

It must not touch sockets, and it decides nothing.
"""
