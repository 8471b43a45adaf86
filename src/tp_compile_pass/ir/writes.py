"""Which nodes of the graph that Dynamo captured write to one of their arguments, and to which."""

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


def written(node: Node) -> list[Node]:
    """The arguments that `node`, for which `writes` holds, writes to."""
    target: Any = node.target
    if isinstance(target, compat.OpOverload):
        given = dict(zip((formal.name for formal in target._schema.arguments), node.args, strict=False)) | node.kwargs
        formals = (formal for formal in target._schema.arguments if formal.alias_info and formal.alias_info.is_write)
        values = [given.get(formal.name) for formal in formals]
    else:
        values = [node.kwargs["out"]] if node.kwargs.get("out") is not None else list(node.args[:1])
    return [leaf for leaf in compat.tree_leaves(values) if isinstance(leaf, Node)]
