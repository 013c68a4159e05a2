"""The tools of the tasks as a user of Harness writes them: a module that workers load."""

from __future__ import annotations

from typing import Any

from benchmarks.agents import tools
from harness_worker.sdk import Transient, tool

Json = Any


def _done(name: str, **arguments: Json) -> str:
    try:
        return tools.run(name, arguments)
    except ConnectionError as error:
        raise Transient(str(error)) from error


@tool(effect="read", untrusted_output=True)
def search_docs(task: str, n: int, query: str) -> str:
    """Search the documents; gives the ids of the two best."""
    return _done("search_docs", task=task, n=n, query=query)


@tool(effect="read", untrusted_output=True)
def read_doc(task: str, n: int, id: str) -> str:
    """Read one document by its id."""
    return _done("read_doc", task=task, n=n, id=id)


@tool(effect="read")
def query_sales(task: str, n: int, region: str, month: str) -> str:
    """Read the sales of a region in a month."""
    return _done("query_sales", task=task, n=n, region=region, month=month)


@tool(effect="read")
def add(task: str, n: int, numbers: list[int]) -> str:
    """Add numbers."""
    return _done("add", task=task, n=n, numbers=numbers)


@tool(effect="read")
def list_orders(task: str, n: int, customer: str) -> str:
    """List the three latest orders of a customer."""
    return _done("list_orders", task=task, n=n, customer=customer)


@tool(effect="read")
def order_details(task: str, n: int, order: str) -> str:
    """Look at one order."""
    return _done("order_details", task=task, n=n, order=order)


@tool(effect="write")
def send_report(task: str, n: int, title: str, total: int) -> str:
    """Send a report to the management."""
    return _done("send_report", task=task, n=n, title=title, total=total)


@tool(effect="write")
def refund(task: str, n: int, order: str, amount: int) -> str:
    """Refund an amount of money for an order."""
    return _done("refund", task=task, n=n, order=order, amount=amount)


@tool(effect="write")
def create_ticket(task: str, n: int, about: str, refund: str) -> str:
    """Open a ticket."""
    return _done("create_ticket", task=task, n=n, about=about, refund=refund)


@tool(effect="write", risk="high")
def delete_all(task: str, n: int) -> str:
    """Delete all documents and orders."""
    return _done("delete_all", task=task, n=n)
