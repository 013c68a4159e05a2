"""The Responses face: runs as the official `openai` clients know them.

A response is a stretch of a run: from its start, or from where the client answered, to where the
run needs the client again or ends. Nothing of it is stored apart from the run: `walk` reads the
durable record, `emit` turns that into items and numbered events, always the same.
"""
