"""What a cage would hide of itself is said beforehand."""

from __future__ import annotations

from harness_worker.sandbox.layout import hidden


def test_an_installation_below_the_cages_own_folders_is_told():
    """It failed as "no cage", and nobody knew why."""
    told = hidden(["/usr/bin/python3", "/work/main/.venv/bin/python"])
    assert told.startswith("/work/main/.venv/bin/python is needed inside")
    assert "the cage's own /work hides this path" in told
    assert "/tmp hides" in hidden(["/tmp/clone/harness_worker"])
    assert hidden(["/usr/bin/python3", "/srv/work/x", "/workshop/x"]) == ""
