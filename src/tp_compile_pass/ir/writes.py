"""Which nodes of the graph that Dynamo captured write to one of their arguments."""

from __future__ import annotations

import operator
from typing import Any

from torch.fx import Node

from tp_compile_pass import compat

_OPERATORS = {
    *(getattr(operator, f"i{name}") for name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul")),
    *(getattr(operator, f"i{name}") for name in ("and", "or", "xor", "lshift", "rshift")),
    operator.setitem,
    operator.delitem,
}


def writes(node: Node) -> bool:
    """Whether `node`, by what it is called, writes to one of its arguments."""
    target: Any = node.target
    if isinstance(target, compat.OpOverload):
        return target._schema.is_mutable
    if node.kwargs.get("out") is not None or node.kwargs.get("inplace") is True:
        return True
    name = target if node.op == "call_method" else getattr(target, "__name__", "")
    return target in _OPERATORS or (name.endswith("_") and not name.endswith("__"))
