"""Deterministic simulation: the real rules under virtual time, faults, and an auditor."""
