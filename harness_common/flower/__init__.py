"""Flower as Harness runs it: pages for people to read, which find their way back to the broker by
themselves. `python -m harness_common.flower` starts it; `harness_api.flower` puts it behind
the login.
"""
