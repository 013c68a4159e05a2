"""A rolling upgrade from an older revision, under load, with effects."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.deploy.rehearsal import rehearse, report
from tests.deploy.versions import NoHistory, older_version


@pytest.mark.nightly
@pytest.mark.e2e
@pytest.mark.timeout(1200)
def test_processes_are_replaced_one_by_one_and_nothing_is_lost(tmp_path: Path):
    try:
        old = older_version()
    except NoHistory as error:
        pytest.skip(str(error))
    outcome = rehearse(old, tmp_path)
    sys.stdout.write(report(outcome) + "\n")
    assert outcome.is_clean, report(outcome)
    assert outcome.accepted > 20
