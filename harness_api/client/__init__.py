"""The Python client of a Harness server, blocking and async from one implementation.

    from harness_api.client import Client

    with Client() as client:
        run = client.runs.create(agent="analyst", input="How many rows?")
        for item in client.runs.stream(run.id):
            print(item)
        print(client.runs.get(run.id).output)

`AsyncClient` has the same methods: await them, or use `async for` where `Client` gives an iterator.
Used by the CLI, the tests and whoever writes programs around Harness.
"""

from harness_api.client.clients import AsyncClient, Client
from harness_api.client.errors import ApiError, BadAnswer, Unreachable
from harness_api.client.target import Target, find_target
from harness_api.client.types import (
    Agent,
    ApiKey,
    Approval,
    Artifact,
    AuditEntry,
    Breaker,
    CallDecision,
    Checkpoint,
    Decision,
    Delivery,
    Effect,
    EgressRules,
    Event,
    FailedAttempt,
    Firing,
    Graph,
    ImportedTools,
    Lineage,
    Live,
    McpServer,
    McpTool,
    Message,
    NewApiKey,
    PendingApproval,
    Platform,
    PolicyVersion,
    Question,
    Readiness,
    Run,
    Schedule,
    Session,
    Step,
    Tenant,
    Throttle,
    Tool,
    ToolCall,
    Tree,
    Webhook,
    Worker,
)

__all__ = [
    "Agent",
    "ApiError",
    "ApiKey",
    "Approval",
    "Artifact",
    "AsyncClient",
    "AuditEntry",
    "BadAnswer",
    "Breaker",
    "CallDecision",
    "Checkpoint",
    "Client",
    "Decision",
    "Delivery",
    "Effect",
    "EgressRules",
    "Event",
    "FailedAttempt",
    "Firing",
    "Graph",
    "ImportedTools",
    "Lineage",
    "Live",
    "McpServer",
    "McpTool",
    "Message",
    "NewApiKey",
    "PendingApproval",
    "Platform",
    "PolicyVersion",
    "Question",
    "Readiness",
    "Run",
    "Schedule",
    "Session",
    "Step",
    "Target",
    "Tenant",
    "Throttle",
    "Tool",
    "ToolCall",
    "Tree",
    "Unreachable",
    "Webhook",
    "Worker",
    "find_target",
]
