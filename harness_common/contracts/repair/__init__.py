"""Reading what a model meant to write as JSON, with every change on record.

`text` reads an object out of an answer, `shape` brings a value into the form of a schema, and
`calls` finds tool calls that were written as text. All of it is pure: what was said and what is
wanted go in, the value and the list of repairs come out. What cannot be read without making
something up is refused (`Unreadable`).
"""
