"""Walking a graph together with everything nested in it."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch.fx import GraphModule, Node

from tp_compile_pass import compat


def nested_modules(gm: GraphModule) -> Iterator[GraphModule]:
    """`gm` and every GraphModule that a `get_attr` or `call_module` node reaches from it, each once, outer first.

    Higher-order ops (checkpoint, cond, invoke_subgraph, autograd_function_apply, flex attention, …) hold their bodies
    as GraphModule attributes that their call site fetches with `get_attr`.
    """
    seen: set[int] = set()
    pending = [gm]
    while pending:
        current = pending.pop(0)
        if id(current) in seen:
            continue
        seen.add(id(current))
        yield current
        for node in current.graph.nodes:
            if node.op in ("get_attr", "call_module"):
                child = attribute(current, node)
                if isinstance(child, GraphModule):
                    pending.append(child)


def nodes(gm: GraphModule) -> Iterator[tuple[GraphModule, Node]]:
    """Every node of `gm` and of what is nested in it, with the GraphModule that owns it."""
    for module in nested_modules(gm):
        for node in module.graph.nodes:
            yield module, node


def attribute(gm: GraphModule, node: Node) -> object:
    """What a `get_attr` or `call_module` node of `gm` refers to; None where there is no such attribute."""
    value: object = gm
    for part in str(node.target).split("."):
        value = getattr(value, part, None)
    return value


def example_value(node: Node) -> object:
    """What tracing recorded as the node's value: Dynamo's `example_value`, or AOTAutograd's `val`; None if neither."""
    value = node.meta.get("example_value")
    return node.meta.get("val") if value is None else value


def is_tensor(node: Node) -> bool:
    """Whether tracing recorded a tensor as the node's value."""
    return isinstance(example_value(node), torch.Tensor)


def is_op(node: Node, *ops: object) -> bool:
    """Whether the node calls one of `ops` (OpOverloads or OpOverloadPackets; Dynamo leaves packets in its graphs)."""
    if node.op != "call_function":
        return False
    target = node.target
    packet = target.overloadpacket if isinstance(target, compat.OpOverload) else target
    return target in ops or packet in ops
