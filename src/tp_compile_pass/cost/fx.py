"""The cost of what an FX node computes, in the graph's symbols."""

from __future__ import annotations

from typing import Any

import sympy
import torch
from torch.fx import Node
from torch.utils.flop_counter import flop_registry

from tp_compile_pass import compat
from tp_compile_pass.cost.model import Link, transfer_seconds
from tp_compile_pass.ir import collectives, walk


def flops(node: Node) -> sympy.Expr:
    """Floating-point operations of a matrix product, convolution or attention, by torch's own formulas; 0 for any other
    node, and for one whose shapes tracing did not record."""
    target = node.target
    packet = target.overloadpacket if isinstance(target, compat.OpOverload) else target
    formula = flop_registry.get(packet)
    if node.op != "call_function" or formula is None:
        return sympy.Integer(0)

    def value(argument: Any) -> Any:
        return walk.example_value(argument) if isinstance(argument, Node) else argument

    arguments = [value(argument) for argument in node.args]
    keywords = {name: value(argument) for name, argument in node.kwargs.items()}
    try:
        return collectives.expression(formula(*arguments, **keywords, out_val=walk.example_value(node)))
    except Exception:  # a formula asserts what it expects of shapes, and knows not every form of an op
        return sympy.Integer(0)


def draws_random_numbers(node: Node) -> bool:
    """Whether the node advances a random-number generator: two of those must not change places."""
    return torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ())


def transfer(node: Node, link: Link) -> sympy.Expr:
    """Seconds that the collective `node` takes on `link`."""
    row = collectives.collective_op(node)
    assert row is not None
    return transfer_seconds(row.kind, collectives.group_size(node), collectives.wire_bytes(node), link)
