"""A support agent that may not give money away by itself."""
