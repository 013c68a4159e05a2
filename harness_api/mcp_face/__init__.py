"""The MCP face: agent clients submit runs, wait for them and answer them through tools.

`tools` is written over the Python client alone, so that the face that is mounted in the API and the
one that `harness mcp serve` speaks over stdio are the same, and neither can do what the caller's
key may not.
"""
