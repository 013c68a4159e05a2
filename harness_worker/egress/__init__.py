"""Outgoing HTTP for tenants: tools, MCP servers, webhooks. Every request leaves through `Egress`."""
