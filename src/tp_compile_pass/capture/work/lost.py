"""Collectives that nobody waits for and that only dead code reads, if anything does: AOTAutograd would drop them, and
the other ranks would wait for ever.

At the end of the region, tracing itself completes a handle that nobody waited for (`scope.py`). Inside a higher-order
op (the body of a checkpoint, a branch of cond) it cannot, and this pass at least keeps the collective.
"""

from __future__ import annotations

from torch.fx import Graph, GraphModule, Node

from tp_compile_pass import compat
from tp_compile_pass.ir import collectives, walk
from tp_compile_pass.ir.writes import writes, written
from tp_compile_pass.passes.base import PassContext
from tp_compile_pass.report.record import PassResult, Place
from tp_compile_pass.report.source import source_line


class KeepUnused:
    """The pass. Requires Dynamo's graph; ensures that no collective in it is dead code."""

    name = "keep_unused_collectives"

    def apply(self, gm: GraphModule, context: PassContext) -> PassResult:
        result = PassResult(self.name)
        needed: dict[Graph, set[Node]] = {}
        for module, node in list(walk.nodes(gm)):
            if collectives.collective_op(node) is None or not walk.is_tensor(node):
                continue
            if module.graph not in needed:
                needed[module.graph] = _needed(module.graph)
            if node in needed[module.graph]:
                continue
            context.before_edit(module)
            place = node.next
            while place not in node.users and place.op != "output":  # a reader would read a result in flight
                place = place.next
            with module.graph.inserting_before(place):
                wait = module.graph.call_function(compat.wait_tensor_op(), (node,))
            wait.meta = dict(node.meta)
            for user in [user for user in node.users if user is not wait]:
                user.replace_input_with(node, wait)
            result.applied.append(Place(node.name, f"unused {node.target}", source_line(node)))
        return result


def _needed(graph: Graph) -> set[Node]:
    """What a wait, the output, or a write to memory that they or the caller read depends on."""
    found: set[Node] = set()
    read: set[int] = set()  # storages
    for node in graph.nodes:
        if node.op in ("placeholder", "get_attr"):
            read |= compat.storages(walk.example_value(node))
    for node in reversed(graph.nodes):
        if node.op == "output" or collectives.is_wait(node) or node in found or _written_and_read(node, read):
            found.add(node)
            for argument in node.all_input_nodes:
                found.add(argument)
                read |= compat.storages(walk.example_value(argument))
    return found


def _written_and_read(node: Node, read: set[int]) -> bool:
    if collectives.collective_op(node) is not None or not writes(node):
        return False
    memory = [compat.storages(walk.example_value(argument)) for argument in written(node)]
    return not all(memory) or not read.isdisjoint(set().union(*memory))  # not all: nobody knows what it writes to
