"""`calculate`: arithmetic without `eval`.

The expression is parsed and only a short list of node types is walked; sizes are checked before a
power is computed, so that no expression can hold the worker.
"""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable
from typing import Annotated

from pydantic import Field

from harness_common.contracts.tool import Tool
from harness_common.core.errors import Invalid
from harness_common.core.message import Json
from harness_common.settings import Settings
from harness_worker.sdk import tool

_NAME = "calculate"
_MAX_CHARS = 500
_MAX_BITS = 4_096
_MAX_DIGITS_SHOWN = 15
"""Floats are rounded to the digits they can carry, so that 0.1 + 0.2 is 0.3."""

_MAX_DIGITS_ROUNDED = 300

Number = int | float


class _Refused(Exception):
    """Why the expression is not computed."""


def _round(value: Number, digits: Number = 0) -> Number:
    """Round as Python does, within digits that `round` can take: it computes 10 ** -digits for a
    whole number.
    """
    if not isinstance(digits, int) or abs(digits) > _MAX_DIGITS_ROUNDED:
        raise _Refused(f"round takes a whole number of digits up to {_MAX_DIGITS_ROUNDED}")
    return round(value, digits) if digits else round(value)


_BINARY: dict[type[ast.operator], Callable[[Number, Number], Number]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
_UNARY: dict[type[ast.unaryop], Callable[[Number], Number]] = {
    ast.UAdd: operator.pos,
    ast.USub: operator.neg,
}
_FUNCTIONS: dict[str, Callable[..., Number]] = {
    "abs": abs,
    "acos": math.acos,
    "asin": math.asin,
    "atan": math.atan,
    "ceil": math.ceil,
    "cos": math.cos,
    "exp": math.exp,
    "floor": math.floor,
    "log": math.log,
    "log10": math.log10,
    "log2": math.log2,
    "max": lambda *values: max(values),
    "min": lambda *values: min(values),
    "round": _round,
    "sin": math.sin,
    "sqrt": math.sqrt,
    "sum": lambda *values: sum(values),
    "tan": math.tan,
}
_CONSTANTS: dict[str, float] = {"pi": math.pi, "e": math.e, "tau": math.tau}


def build(settings: Settings) -> list[Tool]:
    """Build the tool; it has no settings."""
    del settings

    @tool(effect="read")
    def calculate(
        expression: Annotated[
            str, Field(min_length=1, description="Such as (1200 - 950) / 950 * 100.")
        ],
    ) -> Json:
        """Compute an arithmetic expression exactly. Use it instead of computing in your head.

        It knows numbers, + - * / // % ** and parentheses, the constants pi, e and tau, and the
        functions abs, round, floor, ceil, sqrt, exp, log, log2, log10, sin, cos, tan, asin, acos,
        atan, min, max and sum (of several arguments).

        Returns {expression, value}. Whole numbers are exact; others have 15 significant digits.
        Limits: 500 characters, results of at most 4,096 bits, no variables, no text, no comparison.
        """
        return {"expression": expression, "value": evaluate(expression)}

    return [calculate]


def evaluate(expression: str) -> Number:
    """Compute `expression`; raises `Invalid` (`CALCULATION_ERROR`) that says what is wrong with
    it.
    """
    try:
        if len(expression) > _MAX_CHARS:
            raise _Refused(f"it is longer than {_MAX_CHARS} characters; split it")
        value = _value(ast.parse(expression.strip(), mode="eval").body)
    except _Refused as refused:
        raise _error(expression, str(refused)) from None
    except (SyntaxError, RecursionError, MemoryError) as problem:
        raise _error(expression, "it is not a well-formed expression") from problem
    except ZeroDivisionError as problem:
        raise _error(expression, "it divides by zero") from problem
    except (ValueError, TypeError, OverflowError) as problem:
        raise _error(expression, f"{problem}") from problem
    return float(f"{value:.{_MAX_DIGITS_SHOWN}g}") if isinstance(value, float) else value


def _error(expression: str, cause: str) -> Invalid:
    return Invalid(
        f"Tool {_NAME!r} cannot compute {expression[:100]!r}: {cause}. "
        "Use numbers, + - * / // % **, parentheses and the listed functions, and call it again.",
        code="CALCULATION_ERROR",
        tool=_NAME,
    )


def _value(node: ast.expr) -> Number:
    match node:
        case ast.Constant(value=bool() | complex()):
            raise _Refused(f"{node.value!r} is not a real number")
        case ast.Constant(value=int() | float() as number):
            return _checked(number)
        case ast.Name(id=name) if name in _CONSTANTS:
            return _CONSTANTS[name]
        case ast.UnaryOp(op=sign, operand=operand) if type(sign) in _UNARY:
            return _UNARY[type(sign)](_value(operand))
        case ast.BinOp(left=left, op=ast.Pow(), right=right):
            return _checked(_power(_value(left), _value(right)))
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _BINARY:
            return _checked(_BINARY[type(op)](_value(left), _value(right)))
        case ast.Call(func=ast.Name(id=name), args=args, keywords=[]) if name in _FUNCTIONS:
            return _checked(_FUNCTIONS[name](*map(_value, args)))
        case ast.Call(func=ast.Name(id=name)):
            raise _Refused(f"{name} is not one of the functions {', '.join(_FUNCTIONS)}")
        case ast.Name(id=name):
            raise _Refused(f"{name} is not known; put the number in its place")
    raise _Refused(f"{ast.unparse(node)[:60]!r} is not arithmetic")


def _power(base: Number, exponent: Number) -> Number:
    """Compute a power whose size is known to be within the limit beforehand."""
    whole = isinstance(base, int) and isinstance(exponent, int)
    if whole and abs(exponent) * max(abs(int(base)).bit_length() - 1, 0) > _MAX_BITS:
        raise _Refused(f"the power is larger than {_MAX_BITS} bits")
    result = base**exponent
    if isinstance(result, complex):
        raise _Refused("the power of a negative number to a fraction is not real")
    return float(result) if isinstance(result, float) else int(result)


def _checked(value: Number) -> Number:
    if isinstance(value, int):
        if value.bit_length() > _MAX_BITS:
            raise _Refused(f"a number in it is larger than {_MAX_BITS} bits")
    elif not math.isfinite(value):
        raise _Refused("the result is not a finite number")
    return value
