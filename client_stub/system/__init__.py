"""What the process and its system give: unpatched threads and clocks, the log, and words for what is missing.

Applications may patch, stop or exhaust each of these; the stub asks for them only here.
"""
