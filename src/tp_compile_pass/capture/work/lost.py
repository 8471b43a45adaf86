"""Collectives whose result nothing uses: AOTAutograd would drop them, and the other ranks would wait for ever.

At the end of the region, tracing itself completes a handle that nobody waited for (`scope.py`). Inside a higher-order
op (the body of a checkpoint, a branch of cond) it cannot, and this pass at least keeps the collective.
"""

from __future__ import annotations

from torch.fx import GraphModule

from tp_compile_pass import compat
from tp_compile_pass.ir import collectives, walk
from tp_compile_pass.passes.base import PassContext
from tp_compile_pass.report.record import PassResult, Place
from tp_compile_pass.report.source import source_line


class KeepUnused:
    """The pass. Requires Dynamo's graph; ensures that every collective in it has a user."""

    name = "keep_unused_collectives"

    def apply(self, gm: GraphModule, context: PassContext) -> PassResult:
        result = PassResult(self.name)
        for module, node in list(walk.nodes(gm)):
            if node.users or collectives.collective_op(node) is None or not walk.is_tensor(node):
                continue
            context.before_edit(module)
            output = next(iter(reversed(module.graph.nodes)))
            with module.graph.inserting_before(output):
                wait = module.graph.call_function(compat.wait_tensor_op(), (node,))
            wait.meta = dict(node.meta)
            result.applied.append(Place(node.name, f"unused {node.target}", source_line(node)))
        return result
