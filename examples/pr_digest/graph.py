"""The graph `pr-digest`: list pull requests, look at each from two sides at once, sum up, publish.

`python -m examples.pr_digest.graph [PROVIDER/MODEL] > pr-digest.json` writes the definition for
`harness agents apply`; pr-digest.yaml is the same by hand.
"""

from __future__ import annotations

import sys
from typing import Final

from harness_worker.sdk import Graph

SCRIPTED: Final = "scripted/pr-digest"
DIGEST: Final = """\
[scripted answer] 12 open pull requests in acme/rocket.
Checks fail for #103 (parser 4.2), #106 (clock of the second stage) and #112 (abort sequence).
Look first at #108 and #111: both are about security and pass.
The largest is #112 with 610 lines added; #105 removes the most, 840."""


def build(model: str = SCRIPTED) -> Graph:
    """Build the graph; without a model of one's own the summary is declared in advance."""
    options = {"model_options": {"script": [{"text": DIGEST}]}} if model == SCRIPTED else {}
    graph = Graph(
        "pr-digest",
        description="Digest of the open pull requests of a repository",
        model=model,
        max_output_tokens=600,
        output="${/nodes/summarise/output}",
        **options,
    )
    seen = graph.state("seen", "add", 0)
    prs = graph.tool("list_prs", args={"repo": "${/input/repo}"})
    one = {"repo": "${/input/repo}", "number": "${/item/number}"}
    details = graph.map(
        "fetch_details", prs.output, tool="fetch_pr", args=one, parallel=4,
        retry={"times": 2, "backoff_s": 1}, after=prs, set={"seen": 1},
    )  # fmt: skip
    checks = graph.map(
        "fetch_checks", prs.output, tool="fetch_checks", args=one, parallel=4,
        on_error="go_on", after=prs, set={"seen": 1},
    )  # fmt: skip
    summary = graph.model(
        "summarise",
        "Write a digest of these open pull requests in at most eight lines: what to look at "
        f"first, and which fail. {seen} kinds of data were read.\n\n"
        f"Pull requests: {details.output}\n\nChecks: {checks.output}",
        after=(details, checks),
    )
    graph.tool(
        "report", "post_digest", args={"repo": "${/input/repo}", "text": summary.output},
        after=summary,
    )  # fmt: skip
    return graph


if __name__ == "__main__":
    print(build(*sys.argv[1:2]).to_json())
