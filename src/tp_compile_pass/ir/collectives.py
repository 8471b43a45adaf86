"""What a collective is: one table from op to kind and arguments, and the queries over FX nodes that read it.

The table covers the functional collectives that torch traces (`_c10d_functional`, its in-place and autograd variants)
under every name that torch 2.5 to 2.15 gives them; ops a torch version lacks are simply never met.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import sympy
import torch
from torch.fx import Node

from tp_compile_pass.ir.walk import example_value

NAMESPACES = ("_c10d_functional", "_c10d_functional_autograd")


@dataclass(frozen=True)
class CollectiveOp:
    """A row of the table. `kind` is the collective's name in the field; `group` and `reduce_op` name the schema
    arguments that hold the process group's name and the reduction ("" where the op has none)."""

    kind: str
    group: str = "group_name"
    reduce_op: str = ""


_ROWS = {
    "all_reduce": CollectiveOp("all_reduce", reduce_op="reduce_op"),
    "all_reduce_": CollectiveOp("all_reduce", reduce_op="reduce_op"),
    "all_reduce_coalesced": CollectiveOp("all_reduce", reduce_op="reduce_op"),
    "all_reduce_coalesced_": CollectiveOp("all_reduce", reduce_op="reduce_op"),
    "all_gather_into_tensor": CollectiveOp("all_gather"),
    "all_gather_into_tensor_out": CollectiveOp("all_gather"),
    "all_gather_into_tensor_coalesced": CollectiveOp("all_gather"),
    "reduce_scatter_tensor": CollectiveOp("reduce_scatter", reduce_op="reduce_op"),
    "reduce_scatter_tensor_out": CollectiveOp("reduce_scatter", reduce_op="reduce_op"),
    "reduce_scatter_tensor_coalesced": CollectiveOp("reduce_scatter", reduce_op="reduce_op"),
    "all_to_all_single": CollectiveOp("all_to_all"),
    "broadcast": CollectiveOp("broadcast"),
    "broadcast_": CollectiveOp("broadcast"),
    "isend": CollectiveOp("send"),
    "irecv": CollectiveOp("recv"),
    "batch_p2p_ops": CollectiveOp("p2p"),
}


def _name(node: Node) -> tuple[str, str]:
    """("namespace", "op") of a node that calls a torch op (an overload or, in Dynamo's graphs, a packet)."""
    target: Any = node.target
    if node.op != "call_function":
        return "", ""
    packet = target.overloadpacket if isinstance(target, torch._ops.OpOverload) else target
    if not isinstance(packet, torch._ops.OpOverloadPacket):
        return "", ""
    namespace, _, op = packet._qualified_op_name.partition("::")
    return namespace, op


def collective_op(node: Node) -> CollectiveOp | None:
    """The table's row for `node`, or None where it starts no collective."""
    namespace, op = _name(node)
    return _ROWS.get(op) if namespace in NAMESPACES else None


def is_wait(node: Node) -> bool:
    """Whether `node` waits for a collective."""
    namespace, op = _name(node)
    return namespace in NAMESPACES and op == "wait_tensor"


def argument(node: Node, name: str) -> Any:
    """What `node` passes for the schema argument `name`, or its default; None where the op has no such argument."""
    target: Any = node.target
    overload = target if isinstance(target, torch._ops.OpOverload) else getattr(target, "default", None)
    if name in node.kwargs:
        return node.kwargs[name]
    for position, formal in enumerate(overload._schema.arguments if overload is not None else ()):
        if formal.name == name:
            return node.args[position] if position < len(node.args) else formal.default_value
    return None


def group_name(node: Node) -> str:
    """The name of the process group a collective runs on ("" where the graph does not say)."""
    row = collective_op(node)
    value = argument(node, row.group) if row else None
    return str(getattr(value, "group_name", value) or "")


def result_bytes(node: Node) -> sympy.Expr:
    """Bytes of a collective's result on this rank, summed over a coalesced result's tensors.

    Symbolic sizes give an expression in the graph's symbols; 0 where tracing recorded no value.
    """
    value = example_value(node)
    tensors = value if isinstance(value, (tuple, list)) else [value]
    total: sympy.Expr = sympy.Integer(0)
    for tensor in tensors:
        if isinstance(tensor, torch.Tensor):
            size: sympy.Expr = sympy.Integer(tensor.element_size())
            for dim in tensor.shape:
                size *= dim.node.expr if isinstance(dim, torch.SymInt) else sympy.Integer(dim)
            total += size
    return total
