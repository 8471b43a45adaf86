"""Call sites of `AsyncCollectiveTensor` in a Dynamo graph → `_c10d_functional.wait_tensor` nodes.

torch 2.5 traces `x.wait()` on an AsyncCollectiveTensor as a method call burnt into the graph. AOTAutograd then runs the
graph on its own tensor types, which have no such method ("'FunctionalTensor' object has no attribute 'wait'"). Later
versions trace the method's body instead, and this pass finds nothing there.

What counts as a call site is decided by what tracing recorded for the receiver, never by the method's name alone: a
`.wait()` of a Work, an Event, a Future or a tensor subclass of the user's own is none of ours.
"""

from __future__ import annotations

from torch.fx import GraphModule, Node

from tp_compile_pass import compat
from tp_compile_pass.ir import walk
from tp_compile_pass.passes.base import PassContext
from tp_compile_pass.report.record import PassResult, Place
from tp_compile_pass.report.source import source_line

#: The methods that wait and return the plain tensor; the only ones that torch 2.5 leaves in a graph (`numpy` and
#: `tolist` break it, `elem` and `completed` are resolved while tracing).
WAITS = ("wait", "trigger_wait")


class WaitCallSites:
    """The pass. Requires Dynamo's graph (nodes with `example_value`); ensures that no method of AsyncCollectiveTensor
    that AOTAutograd cannot run is left in it."""

    name = "wait_call_sites"

    def apply(self, gm: GraphModule, context: PassContext) -> PassResult:
        result = PassResult(self.name)
        for module, node in list(walk.nodes(gm)):
            if node.op != "call_method" or node.target not in WAITS:
                continue
            place = Place(node.name, f".{node.target}()", source_line(node))
            reason = _why_not(node)
            if reason:
                result.skipped.append(Place(place.node, place.what, place.line, reason))
                continue
            context.before_edit(module)
            _rewrite(node)
            result.applied.append(place)
        return result


def _why_not(node: Node) -> str:
    """Why `node` is not a call site of ours; "" where it is one."""
    receiver = node.args[0] if node.args else None
    if not isinstance(receiver, Node):
        return "the receiver is not a value of the graph"
    value = walk.example_value(receiver)
    if value is None:
        return "tracing recorded no value for the receiver, so its type is unknown"
    if not compat.is_async_collective(value):
        return f"the receiver is a {type(value).__name__}, not an AsyncCollectiveTensor"
    return ""


def _rewrite(node: Node) -> None:
    """Replaces the method call by a wait, in place, keeping the node's metadata and position."""
    graph, receiver = node.graph, node.args[0]
    with graph.inserting_before(node):
        new = graph.call_function(compat.wait_tensor_op(), (receiver,))
    new.meta = dict(node.meta)
    node.replace_all_uses_with(new)
    graph.erase_node(node)
