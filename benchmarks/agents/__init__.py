"""The agent benchmark: 30 tasks under one fault at a time, on Harness, a plain loop and LangGraph.

`tasks` says what is to be done, `tools` does it, `brain` is the scripted model behind a real Chat
Completions server that injects the faults, and there is one file for each system that runs them.
The model is the same for all, and it is scripted: what is measured is what the system around it
makes of faults, not how clever a model is.
"""
