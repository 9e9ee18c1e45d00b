"""The end of a record after its fate is decided: facts in the journal, outcomes in rings, dead letters.

It must not touch sockets, and it decides nothing.
"""
