"""Collectives that send the same again, computed once.

Two calls of a layer on one input, or two losses over the same logits, gather or reduce the same tensor twice. In
training torch's own common-subexpression elimination merges them in the joint graph (all versions checked, 2.5 to
2.15); graphs for inference are left as they are. This pass does it there, too, and as torch does it takes for granted
that the ranks of a group run one program: the decision depends on the structure of the graph alone, not on sizes.
"""

from __future__ import annotations

from typing import Any

from torch.fx import GraphModule, Node

from tp_compile_pass.ir import aliases, collectives, walk
from tp_compile_pass.passes.base import PassContext
from tp_compile_pass.report.record import PassResult, Place
from tp_compile_pass.report.source import source_line
from tp_compile_pass.verify.memory import access

KINDS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast")


class IdenticalCollectives:
    """The pass. Requires a graph after AOTAutograd; ensures that a collective it merged has become the earlier one of
    the same op, operands and group, whose result was in memory at that point anyway. Of the waits of both the first
    stays."""

    name = "identical_collectives"

    def apply(self, gm: GraphModule, context: PassContext) -> PassResult:
        result = PassResult(self.name)
        for module in walk.nested_modules(gm):
            first: dict[Any, Node] = {}
            for node in list(module.graph.nodes):
                row = collectives.collective_op(node)
                if (
                    row is None
                    or row.kind not in KINDS
                    or row.waited != "wait"
                    or row.writes
                    or not walk.is_tensor(node)
                ):
                    if first and _writes(node):
                        first.clear()  # what was sent before may have changed
                    continue
                key = (node.target, _frozen(node.args), _frozen(node.kwargs))
                earlier = first.setdefault(key, node)
                if earlier is node:
                    continue
                what = f"{row.kind} of what {earlier.name!r} sends"
                place = Place(node.name, what, source_line(node), _why_not(earlier, node))
                if place.reason:
                    result.skipped.append(place)
                    first[key] = node
                    continue
                context.before_edit(module)
                context.replaces(module, node, earlier)
                _merge(module, earlier, node)
                result.applied.append(place)
        return result


def _frozen(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return tuple(map(_frozen, value))
    if isinstance(value, dict):
        return tuple((key, _frozen(value[key])) for key in sorted(value))
    return value


def _writes(node: Node) -> bool:
    """Whether `node` may change memory that was there before it."""
    if node.op != "call_function" or collectives.is_wait(node):
        return False
    if collectives.op_name(node):
        return bool(access(node).writes)
    return any(map(walk.is_tensor, node.all_input_nodes))  # a higher-order op


def _why_not(earlier: Node, node: Node) -> str:
    """Why the two stay apart; "" where one will do."""
    users = [user for alias in aliases.sharing(earlier) for user in alias.users]
    if all(user < node for user in users):
        return "the earlier result is used up before, and would have to be kept until here"
    if any(user.op == "output" for user in users) and aliases.leaves(node):
        return "the caller gets both results, and may change one"
    return ""


def _merge(module: GraphModule, earlier: Node, node: Node) -> None:
    """Lets the readers of `node` read what `earlier` receives, after the first wait of either."""
    waits = sorted(user for source in (earlier, node) for user in source.users if collectives.is_wait(user))
    node.replace_all_uses_with(earlier)
    module.graph.erase_node(node)
    for wait in waits[1:]:
        wait.replace_all_uses_with(waits[0])
        module.graph.erase_node(wait)
