"""The contract of a model step: what the model is told about the form of its answer, how the answer
is read, and what follows when it has not that form.
"""
