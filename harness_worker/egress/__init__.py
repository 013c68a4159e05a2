"""Outgoing HTTP of tenants: tools, MCP servers, webhooks. All of it leaves through `Egress`."""
