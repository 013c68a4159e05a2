"""Queues of suspects are nobody's to name but the platform's, and serve one run at a time."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from harness_common.contracts.agent import AgentSpec
from harness_common.core.lease import is_quarantine, quarantine_of
from harness_common.settings import WorkerSettings


def test_an_agent_cannot_name_a_queue_of_suspects():
    with pytest.raises(ValidationError, match="kept for runs whose worker processes died"):
        AgentSpec(queue="steps.mine.quarantine")
    assert AgentSpec(queue="steps.quarantine.mine").queue == "steps.quarantine.mine"


def test_a_worker_of_suspects_holds_one_run():
    queues = ("steps.default", quarantine_of("steps.mine"))
    with pytest.raises(ValidationError, match="needs concurrency 1, not 200"):
        WorkerSettings(queues=queues)
    assert WorkerSettings(queues=queues, concurrency=1).queues == queues
    assert [is_quarantine(q) for q in queues] == [False, True]
