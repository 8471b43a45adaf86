"""Inputs of all_reduce made contiguous, for the versions of torch whose Inductor otherwise waits on the wrong buffer.

Inductor lowers `all_reduce(x)` to an in-place one on a private copy. The copy is laid out like `x`; where that is not
contiguous, torch 2.9 sends a second, contiguous copy, and waits on the first (`compat.WAITS_ON_A_COPY`). What is read
afterwards may not have arrived, and nothing says so.

An all_reduce does not care about the order of elements. So the pass sends a view of the input with its dimensions in
the order of its memory, which is contiguous, and views the result back: no copy, the same values, sizes and strides.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.fx import GraphModule, Node

from tp_compile_pass import compat
from tp_compile_pass.ir import collectives, walk
from tp_compile_pass.passes.base import PassContext
from tp_compile_pass.report.record import PassResult, Place
from tp_compile_pass.report.source import source_line

aten = torch.ops.aten
WHAT = "all_reduce of a tensor that is not contiguous"


class ContiguousInputs:
    """The pass. Requires a graph after AOTAutograd (nodes with `val`); ensures that every functional all_reduce it
    rewrote sends a contiguous tensor."""

    name = "contiguous_inputs"

    def apply(self, gm: GraphModule, context: PassContext) -> PassResult:
        result = PassResult(self.name)
        for module, node in list(walk.nodes(gm)):
            row = collectives.collective_op(node)
            if row is None or row.kind != "all_reduce" or row.waited != "wait" or row.writes:
                continue
            operands = collectives.operands(node, row.reads)
            if all(compat.is_contiguous(walk.example_value(operand)) for operand in operands):
                continue
            place = Place(node.name, WHAT, source_line(node))
            reason = _why_not(node, operands)
            if reason:
                result.skipped.append(Place(place.node, place.what, place.line, reason))
                continue
            context.before_edit(module)
            _rewrite(node, operands[0])
            result.applied.append(place)
        return result


def _why_not(node: Node, operands: Sequence[Node]) -> str:
    """Why the collective is left alone; "" where it can be rewritten."""
    if len(operands) != 1 or not isinstance(walk.example_value(node), torch.Tensor):
        return "it reduces several tensors at once"
    value = walk.example_value(node)
    assert isinstance(value, torch.Tensor)
    order = compat.memory_order(value) if value.layout == torch.strided else None
    if order is None:
        return "its strides are not known"
    if not compat.is_contiguous(value.permute(order)):
        return "its result is not dense"
    waits = [user for user in node.users if collectives.is_wait(user)]
    if len(waits) != 1:
        return f"it has {len(waits)} waits"
    early = [user for user in node.users if user is not waits[0] and user < waits[0]]
    return f"{early[0].name!r} uses it before it is waited for" if early else ""


def _rewrite(node: Node, operand: Node) -> None:
    graph, value = node.graph, walk.example_value(node)
    (wait,) = (user for user in node.users if collectives.is_wait(user))
    sent = walk.example_value(operand)
    assert isinstance(value, torch.Tensor) and isinstance(sent, torch.Tensor)
    order = compat.memory_order(value)
    assert order is not None
    back = [order.index(dim) for dim in range(len(order))]
    inner = value.permute(order)
    with graph.inserting_before(node):
        view = _like(operand, graph.call_function(aten.permute.default, (operand, order)), sent.permute(order))
        if not compat.is_contiguous(view.meta["val"]):
            dense = graph.call_function(aten.clone.default, (view,), {"memory_format": torch.contiguous_format})
            view = _like(operand, dense, view.meta["val"].clone(memory_format=torch.contiguous_format))
    node.replace_input_with(operand, view)
    node.meta["val"] = inner
    with graph.inserting_after(wait):
        restored = _like(wait, graph.call_function(aten.permute.default, (wait, back)), value)
    wait.meta["val"] = inner
    for user in [user for source in (node, wait) for user in source.users]:
        if user not in (wait, restored):
            user.replace_input_with(node, restored)
            user.replace_input_with(wait, restored)


def _like(source: Node, new: Node, value: torch.Tensor) -> Node:
    new.meta = {**source.meta, "val": value}
    return new
