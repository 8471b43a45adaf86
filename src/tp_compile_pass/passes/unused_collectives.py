"""Collectives whose result nothing reads, taken out where the user allows it (`tp.drop_unused`).

Dead code for one process, but not for a group: another rank's program may read what this one ignores, and would then
wait for ever. Some programs also use such a collective as a barrier. torch keeps them for these reasons, and so does
this pass unless the option says that no rank needs them.
"""

from __future__ import annotations

from torch.fx import GraphModule, Node

from tp_compile_pass.ir import collectives, walk
from tp_compile_pass.passes.base import PassContext
from tp_compile_pass.report.record import PassResult, Place
from tp_compile_pass.report.source import source_line

KEPT = "another rank may need it (tp.drop_unused=True, if no rank does)"


class UnusedCollectives:
    """The pass. Requires a graph after AOTAutograd; ensures that what it took out was read by nothing in the graph."""

    name = "unused_collectives"

    def apply(self, gm: GraphModule, context: PassContext) -> PassResult:
        result = PassResult(self.name)
        for module in walk.nested_modules(gm):
            for node in reversed(list(module.graph.nodes)):
                row = collectives.collective_op(node)
                if row is None or row.waited != "wait" or row.writes or row.kind == "p2p":
                    continue
                readers = _readers(node)
                if readers is None:
                    continue
                what = f"{row.kind} whose result is not used"
                if not context.options.drop_unused:
                    result.skipped.append(Place(node.name, what, source_line(node), KEPT))
                    continue
                context.before_edit(module)
                context.replaces(module, node, None)
                for dead in [*readers, node]:
                    module.graph.erase_node(dead)
                result.applied.append(Place(node.name, what, source_line(node)))
        result.skipped.reverse()
        result.applied.reverse()
        return result


def _readers(node: Node) -> list[Node] | None:
    """What hangs on `node`, last first, if that is only waits and elements of a list; None where anything reads it."""
    found: list[Node] = []
    for user in node.users:
        if not collectives.is_wait(user) and getattr(user.target, "__name__", "") != "getitem":
            return None
        behind = _readers(user)
        if behind is None:
            return None
        found += [*behind, user]
    return found
