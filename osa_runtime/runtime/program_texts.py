"""The texts in a file of torch.export, which torch makes Python of.

It evaluates guards and sizes as expressions, and writes the names of values and inputs into the source of ``forward``.
So guards and sizes must be arithmetic, and everything else must be a name that can end no string and call nothing.
"""

from __future__ import annotations

import ast
import json
import re
from typing import Any

EXPRESSIONS = ("guards_code", "expr_str")
ALLOWED = (
    *(
        ast.Expression,
        ast.BoolOp,
        ast.boolop,
        ast.UnaryOp,
        ast.unaryop,
        ast.BinOp,
        ast.operator,
        ast.Compare,
        ast.cmpop,
    ),
    *(ast.Constant, ast.Name, ast.Load, ast.Subscript, ast.Attribute, ast.Call, ast.keyword),
)
CALLED = re.compile(r"[A-Z]\w*|abs|bool|float|int")  # classes of sympy begin with a capital letter
OF_TENSORS = ("size", "stride", "storage_offset", "dim")
NAME = re.compile(r"[\w.+/-]*")
TEXT = re.compile(r"[^'\"\\\r\n]*")  # the value of an argument, such as the equation of einsum


def refuse_code(content: Any, key: str = "") -> None:
    """Raise ValueError where a text is more than a name or, under the keys of expressions, more than arithmetic."""
    if isinstance(content, dict):
        for name, value in content.items():
            _refuse_text(name, "")
            if key != "metadata" or not isinstance(value, str):  # of nodes: where they come from
                refuse_code(value, name)
    elif isinstance(content, (list, tuple)):
        for value in content:
            refuse_code(value, key)
    elif isinstance(content, str):
        _refuse_text(content, key)


def _refuse_text(text: str, key: str) -> None:
    if key in EXPRESSIONS:
        _refuse_expression(text)
    elif text[:1] in ("[", "{"):  # a specification of inputs or outputs is JSON within JSON
        refuse_code(json.loads(text))
    elif not (TEXT if key in ("as_string", "as_float") else NAME).fullmatch(text):
        raise ValueError(f"{text[:80]!r} is not a name that torch.export writes; it could run as code.")


def _refuse_expression(text: str) -> None:
    one_line = re.search(r"[#\\\r\n]", text) is None
    nodes = ast.walk(ast.parse(text, mode="eval"))
    if not one_line or not all(isinstance(node, ALLOWED) and _is_arithmetic(node) for node in nodes):
        raise ValueError(f"the expression {text[:80]!r} is not arithmetic of sizes; it could run any code.")


def _is_arithmetic(node: ast.AST) -> bool:
    if isinstance(node, ast.Call):
        return isinstance(node.func, ast.Attribute) or (
            isinstance(node.func, ast.Name) and CALLED.fullmatch(node.func.id) is not None
        )
    if isinstance(node, ast.Attribute):
        of_math = isinstance(node.value, ast.Name) and node.value.id == "math" and not node.attr.startswith("_")
        return of_math or node.attr in OF_TENSORS
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return NAME.fullmatch(node.value) is not None
    return not isinstance(node, ast.Constant) or isinstance(node.value, (bool, int, float))
