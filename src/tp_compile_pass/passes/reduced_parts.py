"""all_reduce of which each rank reads its own part only → reduce_scatter, which sends half as much.

Sequence parallelism written as "reduce, then take my rows" has this form, DTensor's `Partial → Replicate → Shard`, too.
The ranks must all do so; a graph alone does not show that (`own_part`), so `tp.own_part` turns it on. Sums may be added
up in another order than by the all_reduce.
"""

from __future__ import annotations

import torch
from torch.fx import GraphModule, Node

from tp_compile_pass import compat
from tp_compile_pass.ir import collectives, walk
from tp_compile_pass.passes.base import PassContext
from tp_compile_pass.passes.own_part import NOT_ALLOWED, source_of_own_part
from tp_compile_pass.report.record import PassResult, Place
from tp_compile_pass.report.source import source_line

aten = torch.ops.aten
WHAT = "all_reduce of which the own part is read"


class ReducedParts:
    """The pass. Requires a graph after AOTAutograd; ensures that each all_reduce it took out has become a
    reduce_scatter in its place, whose result every reader of the part reads."""

    name = "reduced_parts"

    def apply(self, gm: GraphModule, context: PassContext) -> PassResult:
        result = PassResult(self.name)
        for module, node in list(walk.nodes(gm)):
            row = collectives.collective_op(node)
            if (
                row is None
                or row.kind != "all_reduce"
                or row.waited != "wait"
                or row.writes
                or not walk.is_tensor(node)
            ):
                continue
            parts = _parts(node)
            if not parts:
                continue
            place = Place(node.name, WHAT, source_line(node), _why_not(node, context))
            if place.reason:
                result.skipped.append(place)
                continue
            context.before_edit(module)
            context.replaces(module, node, _rewrite(module, node, parts))
            result.applied.append(place)
        return result


def _parts(node: Node) -> list[Node]:
    """The nodes that read the result, if each takes the own part of it; else none."""
    group, waits = collectives.group_name(node), list(node.users)
    if len(waits) != 1 or not collectives.is_wait(waits[0]):
        return []
    readers, pending = [], list(waits[0].users)
    while pending:
        user = pending.pop()
        if source_of_own_part(user, group) is waits[0]:
            readers.append(user)
        elif walk.is_op(user, aten.split.Tensor, aten.split_with_sizes.default, aten.slice.Tensor) and user.users:
            pending += user.users  # on the way to the part
        else:
            return []
    return readers


def _why_not(node: Node, context: PassContext) -> str:
    if not context.options.own_part:
        return NOT_ALLOWED
    sent = walk.example_value(collectives.operands(node, ("input",))[0])
    return "" if compat.is_contiguous(sent) else "what it sends is not contiguous"


def _rewrite(module: GraphModule, node: Node, parts: list[Node]) -> Node:
    """Puts the new collective in the place of the old one, and returns it."""
    graph, group = module.graph, collectives.group_name(node)
    (wait,) = node.users
    (operand,) = collectives.operands(node, ("input",))
    sent, part = walk.example_value(operand), walk.example_value(parts[0])
    ranks = compat.group_ranks(group)
    assert isinstance(sent, torch.Tensor) and isinstance(part, torch.Tensor) and ranks is not None
    outer = next(dim for dim, size in enumerate(sent.shape) if size != part.shape[dim])  # each of these is 1
    with graph.inserting_before(node):
        if outer:
            flat = sent.view(sent.shape[outer:])
            operand = graph.call_function(aten.view.default, (operand, list(flat.shape)))
            operand.meta, sent = {**node.meta, "val": flat}, flat
        scatter = graph.call_function(
            torch.ops._c10d_functional.reduce_scatter_tensor.default,
            (operand, collectives.reduce_op(node), len(ranks), group),
        )
    scatter.meta = {**node.meta, "val": sent.new_empty((sent.shape[0] // len(ranks), *sent.shape[1:]))}
    with graph.inserting_before(wait):
        own = graph.call_function(compat.wait_tensor_op(), (scatter,))
        own.meta = {**wait.meta, "val": scatter.meta["val"]}
        if outer:
            shaped = graph.call_function(aten.view.default, (own, list(part.shape)))
            shaped.meta, own = {**wait.meta, "val": own.meta["val"].view(part.shape)}, shaped
    for reader in parts:
        reader.replace_all_uses_with(own)
        while reader is not wait and not reader.users:
            (source,) = reader.all_input_nodes
            graph.erase_node(reader)
            reader = source
    graph.erase_node(wait)
    graph.erase_node(node)
    return scatter
