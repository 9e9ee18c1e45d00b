"""The worker processes: started, watched, replaced, and asked.

Nothing of a record is here: a worker's slot in the segment has it all.
"""
