"""Waits for what has been waited for already, taken out.

`wait_tensor` costs a call into c10d, and a second wait keeps the kernels behind it from moving before it. They come
from code that waits to be sure, and from merged collectives. torch 2.15 leaves one of them by itself in the programs
tried, and in training graphs common-subexpression elimination drops equal ones; torch 2.5 and 2.13 keep the others.
"""

from __future__ import annotations

from torch.fx import GraphModule, Node

from tp_compile_pass.ir import collectives, walk
from tp_compile_pass.passes.base import PassContext
from tp_compile_pass.report.record import PassResult, Place
from tp_compile_pass.report.source import source_line
from tp_compile_pass.verify.trace import trace


class RedundantWaits:
    """The pass. Requires a graph after AOTAutograd; ensures that of the waits it looked at, each collective keeps the
    first on every path, and that every reader still comes after that one."""

    name = "redundant_waits"

    def apply(self, gm: GraphModule, context: PassContext) -> PassResult:
        result = PassResult(self.name)
        owners = {node: module for module, node in walk.nodes(gm) if collectives.is_wait(node)}
        if not any(_is_candidate(node) for node in owners):
            return result  # a walk with memory costs more than a look
        seen = trace(gm)
        needed = {node for start in seen.starts for node in start.waits}
        for node in dict.fromkeys(node for node, _ in seen.again if node not in needed and not seen.guessed):
            if node not in owners:
                continue  # an op that waits among other things
            place = Place(node.name, "wait for what has been waited for", source_line(node))
            earlier = _waited(node)
            if earlier is None:
                reason = "its readers depend on it, not on the wait before it"
                result.skipped.append(Place(place.node, place.what, place.line, reason))
                continue
            context.before_edit(owners[node])
            node.replace_all_uses_with(earlier)
            owners[node].graph.erase_node(node)
            result.applied.append(place)
        return result


def _is_candidate(wait: Node) -> bool:
    source = wait.args[0] if wait.args else None
    return isinstance(source, Node) and (
        collectives.is_wait(source)
        or sum(map(collectives.is_wait, source.users)) > 1
        or _through_views(source) is not None
    )


def _waited(wait: Node) -> Node | None:
    """The value that the readers of `wait` can read as well, and that comes after an earlier wait; None where there is
    none in this graph."""
    source = wait.args[0]
    if not isinstance(source, Node):
        return None
    if collectives.is_wait(source) or _through_views(source) is not None:
        return source
    return min((user for user in source.users if collectives.is_wait(user) and user < wait), default=None)


def _through_views(node: Node) -> Node | None:
    """The wait whose result `node` is a view of, if it is one."""
    while node.op == "call_function" and not collectives.is_wait(node):
        schema = collectives.schema_of(node)
        if schema is None or all(returned.alias_info is None for returned in schema.returns):
            return None
        source = node.args[0] if node.args else None
        if not isinstance(source, Node):
            return None
        node = source
    return node if collectives.is_wait(node) else None
