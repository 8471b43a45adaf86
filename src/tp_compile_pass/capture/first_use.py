"""Where a compiled region first reads one of its inputs, and the move of the wait to that place.

An AsyncCollectiveTensor may enter a graph in flight, as the bare tensor its collective is still writing to, where the
graph waits for it itself. Without autograd history that is sound where the region uses the input by value only: the
wait's result then stands for the input everywhere, and that both are the same memory matters to nobody.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.fx import GraphModule, Node

from tp_compile_pass import compat
from tp_compile_pass.ir import walk
from tp_compile_pass.ir.writes import writes


@dataclass(frozen=True)
class FirstUse:
    """Where `placeholder` has to be waited for: before `reader`. `views` are the nodes before it that only look at the
    input's sizes and strides; they come with the wait."""

    placeholder: Node
    views: tuple[Node, ...]
    reader: Node

    def insert_wait(self) -> None:
        """Puts a wait before `reader` and lets everything that used the placeholder use its result."""
        graph, value = self.placeholder.graph, self.placeholder.meta["example_value"]
        with graph.inserting_before(self.reader):
            wait = graph.call_function(compat.wait_tensor_op(), (self.placeholder,))
        wait.meta = {**self.reader.meta, "example_value": compat.plain_like(value)}
        self.placeholder.replace_all_uses_with(wait, delete_user_cb=lambda user: user is not wait)
        for view in self.views:
            self.reader.prepend(view)


def first_use(gm: GraphModule, placeholder: Node) -> FirstUse | str:
    """Finds where `gm` first reads `placeholder`, an async input without history, or says why it cannot be waited for
    there. Requires Dynamo's graph, in which each node has its `example_value`."""
    memory = compat.storages(placeholder.meta["example_value"])
    aliases, views, reader = {placeholder}, [], None
    for node in gm.graph.nodes:
        if node.op == "placeholder":
            continue
        uses = not aliases.isdisjoint(node.all_input_nodes)
        if node.op == "output":
            if uses:
                return "the region returns it or a view of it"
            continue
        if reader is None and not uses and _changes_mode(node):
            reader = node
        if not uses:
            continue
        value = walk.example_value(node)
        if writes(node):
            return "the region writes to it"
        if value is None:
            return f"tracing recorded no value for {node.name}"
        if isinstance(node.target, compat.HigherOrderOperator) and _writes_inside(gm):
            return "the region hands it to a nested graph that writes to its inputs"
        if not memory.isdisjoint(compat.storages(value)):
            aliases.add(node)
            if reader is None and all(map(compat.is_async_collective, compat.tree_leaves(value))):
                views.append(node)
                continue
        reader = reader or node
    if any(_written(node) for node in aliases):
        return "the region writes to it"
    if reader is None:
        return "the region does not read it"
    if not _works_before(gm, reader):
        return "the region's first work reads it"
    return FirstUse(placeholder, tuple(views), reader)


def _works_before(gm: GraphModule, reader: Node) -> bool:
    """Whether anything computes new data before `reader`; otherwise nothing is won by waiting there."""
    known: set[int] = set()
    for node in gm.graph.nodes:
        if node is reader:
            return False
        made = compat.storages(walk.example_value(node))
        if node.op not in ("placeholder", "get_attr") and not made <= known:
            return True
        known |= made
    return False


def _changes_mode(node: Node) -> bool:
    """Whether a wait or a view before `node` may mean something else than after it: inference mode, functorch levels;
    not autocast, nor the grad mode where there is no history. Calls that change a mode have no value."""
    if node.op != "call_function" or walk.example_value(node) is not None:
        return False
    name = getattr(node.target, "__name__", "")
    return "autocast" not in name and name != "_set_grad_enabled"


def _written(node: Node) -> bool:
    """Whether tracing wrote to the node's value; seen by its version, whatever form the write had."""
    return any(
        isinstance(value, torch.Tensor) and not value.is_inference() and value._version > 0
        for value in compat.tree_leaves(walk.example_value(node))
    )


def _writes_inside(gm: GraphModule) -> bool:
    return any(writes(node) for module in walk.nested_modules(gm) if module is not gm for node in module.graph.nodes)
