"""all_gather of the parts that a tensor was just cut into, each rank its own → the tensor itself.

`Replicate → Shard → Replicate` leaves this behind, where one layer scatters and the next wants it all. The tensor must
be the same on all ranks, so it must be what a collective of the same group has just delivered to all of them; and each
rank must have cut out its own part, for which a graph alone is no proof (`own_part`): `tp.own_part` turns the pass on.
"""

from __future__ import annotations

import torch
from torch.fx import GraphModule, Node

from tp_compile_pass.ir import aliases, collectives, walk
from tp_compile_pass.passes.base import PassContext
from tp_compile_pass.passes.own_part import NOT_ALLOWED, source_of_own_part
from tp_compile_pass.report.record import PassResult, Place
from tp_compile_pass.report.source import source_line

WHAT = "all_gather of what was just scattered"
#: Collectives after which every rank of the group has the same tensor.
SAME_EVERYWHERE = ("all_reduce", "all_gather", "broadcast")


class ScatteredGathers:
    """The pass. Requires a graph after AOTAutograd; ensures that the gathers it took out had a result that is in memory
    already, bit by bit."""

    name = "scattered_gathers"

    def apply(self, gm: GraphModule, context: PassContext) -> PassResult:
        result = PassResult(self.name)
        for module, node in list(walk.nodes(gm)):
            whole = _whole(node)
            if whole is None:
                continue
            place = Place(node.name, WHAT, source_line(node), _why_not(node, whole, context))
            if place.reason:
                result.skipped.append(place)
                continue
            context.before_edit(module)
            context.replaces(module, node, None)
            (wait,) = node.users
            wait.replace_all_uses_with(whole)
            for dead in (wait, node):
                module.graph.erase_node(dead)
            result.applied.append(place)
        return result


def _whole(node: Node) -> Node | None:
    """What the all_gather `node` puts together again."""
    row = collectives.collective_op(node)
    if row is None or row.kind != "all_gather" or row.waited != "wait" or row.writes or not walk.is_tensor(node):
        return None
    group = collectives.group_name(node)
    wait = source_of_own_part(collectives.operands(node, row.reads)[0], group)
    if wait is None or not collectives.is_wait(wait):
        return None
    start = wait.args[0]
    if not isinstance(start, Node):
        return None
    made = collectives.collective_op(start)
    if made is None or made.kind not in SAME_EVERYWHERE or collectives.group_name(start) != group:
        return None
    return wait


def _why_not(node: Node, whole: Node, context: PassContext) -> str:
    if not context.options.own_part:
        return NOT_ALLOWED
    users = list(node.users)
    if len(users) != 1 or not collectives.is_wait(users[0]):
        return "its result is not waited for once"
    one, other = walk.example_value(node), walk.example_value(whole)
    assert isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor)
    if one.shape != other.shape or one.stride() != other.stride():
        return "what comes out has another layout"
    if aliases.leaves(node) and aliases.leaves(whole):
        return "the caller gets both results, and may change one"
    return ""
