"""Approval nodes of a graph: a question to a person, asked and answered like any approval.

The call behind it does nothing: what it is for is the person's yes, bound to what was shown.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from harness_common.contracts.graph import ApprovalNode, GraphSpec, SubgraphNode
from harness_common.contracts.tool import EffectClass, Tool, ToolContext, ToolSpec
from harness_common.core.graph import APPROVAL_CALL
from harness_common.core.graph_log import Asked
from harness_common.core.message import Json
from harness_common.core.policy import Decision, Verdict
from harness_worker.tools.call import PendingCall, ToolScope
from harness_worker.tools.gate import Gate


async def _approved(ctx: ToolContext, ask: str, show: Json = None) -> Json:
    """Give what a person has said yes to."""
    del ctx, ask
    return {"approved": True, "show": show}


APPROVAL: Tool = Tool(
    ToolSpec(
        APPROVAL_CALL,
        "Asks a person; made by the approval nodes of graphs alone.",
        {
            "type": "object",
            "properties": {"ask": {"type": "string"}, "show": {}},
            "required": ["ask"],
            "additionalProperties": False,
        },
        EffectClass.IDEMPOTENT,
    ),
    _approved,
)


class GraphGate(Gate):
    """The policy of a graph's step: an approval node asks a person always, whoever may be asked
    otherwise.
    """

    def __init__(self, scope: ToolScope, spec: GraphSpec, asked: Sequence[Asked]) -> None:
        super().__init__(scope)
        self._nodes = {
            index: node
            for index, one in enumerate(asked)
            if isinstance(node := node_of(spec, one.node), ApprovalNode)
        }

    async def decide(self, call: PendingCall, tool: Tool) -> Decision:
        """Say whether the call may be made as it stands."""
        node = self._nodes.get(call.index)
        if call.name != APPROVAL_CALL or node is None:
            return await super().decide(call, tool)
        asked = call.asked if isinstance(call.asked, Mapping) else {}
        return Decision(
            Verdict.ASK,
            (str(asked.get("ask", node.ask)),),
            "graph.approval",
            approver_roles=node.roles,
            four_eyes=node.four_eyes,
            expires_s=node.expires_s,
        )

    def recheck(self, call: PendingCall) -> Decision:
        """Say whether a recorded result may still be read: a person's yes may."""
        if call.name == APPROVAL_CALL:
            return Decision(Verdict.ALLOW, rule="graph.approval")
        return super().recheck(call)


def node_of(spec: GraphSpec, key: str) -> object | None:
    """Return the node of a definition by its key in the flat graph; None when it has none."""
    first, _, rest = key.partition("/")
    node = spec.nodes.get(first)
    if rest and rest != "*":
        return node_of(node.graph, rest) if isinstance(node, SubgraphNode) else None
    return node
