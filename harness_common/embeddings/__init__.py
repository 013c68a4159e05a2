"""Embedding models: what they are called, and where they come from.

Used by workers and the API alike, so that both find what the other has saved.
"""
