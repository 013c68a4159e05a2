"""Objects of other frameworks as runs: LangGraph graphs, OpenAI-Agents agents.

Nothing here is imported by a worker that runs none: `steps.foreign` imports the module of a
framework when the first step of that kind comes.
"""
