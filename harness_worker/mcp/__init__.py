"""MCP servers as a source of tools: connections, pinned tool lists, calls."""
