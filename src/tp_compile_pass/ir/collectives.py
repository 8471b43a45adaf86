"""The queries over FX nodes that read the table of communication ops (`ir.table`)."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import sympy
import torch
from torch.fx import Node

from tp_compile_pass import compat
from tp_compile_pass.ir import table
from tp_compile_pass.ir.table import CollectiveOp
from tp_compile_pass.ir.walk import example_value


def op_name(node: Node) -> str:
    """ "namespace::op" of a node that calls a torch op (an overload or, in Dynamo's graphs, a packet); else ""."""
    return name_of(node.target) if node.op == "call_function" else ""


def name_of(op: Any) -> str:
    """ "namespace::op" of a torch op; "" for anything else."""
    return _name(op) if isinstance(op, (compat.OpOverload, compat.OpOverloadPacket)) else ""


@functools.lru_cache(maxsize=4096)
def _name(op: Any) -> str:
    packet = op.overloadpacket if isinstance(op, compat.OpOverload) else op
    return str(packet._qualified_op_name)


def schema_of(node: Node) -> torch.FunctionSchema | None:
    """The schema of the op that `node` calls (a packet's default overload); None for anything but a torch op."""
    target: Any = node.target
    if node.op != "call_function":
        return None
    if isinstance(target, compat.OpOverloadPacket):
        target = getattr(target, "default", None)
    return target._schema if isinstance(target, compat.OpOverload) else None


def collective_op(node: Node) -> CollectiveOp | None:
    """The table's row for `node`, or None where it starts no collective that the table knows."""
    return table.ROWS.get(op_name(node))


def is_wait(node: Node) -> bool:
    """Whether `node` waits for a collective."""
    return op_name(node) in table.WAITS


def may_communicate(node: Node) -> bool:
    """Whether `node` communicates, or may, in a way that the table does not know.

    So is taken: an op of a communication namespace, a custom op that takes a process group, one that the user declared,
    a function of torch.distributed left in a Dynamo graph, and any operation on a DTensor. Such a node is ordered with
    every collective.
    """
    if op_name(node):
        return op_may_communicate(node.target)
    if node.op == "call_function":
        if str(getattr(node.target, "__module__", "")).startswith("torch.distributed."):
            return True
        # A higher-order op that carries out a communication op it is given (auto_functionalized, with_effects).
        if any(name_of(argument) in table.ROWS for argument in node.args):
            return True
    if node.op in ("call_function", "call_method"):
        return any(compat.is_dtensor(example_value(n)) for n in (node, *node.all_input_nodes))
    return False


def op_may_communicate(op: Any) -> bool:
    """The same for a torch op, without the node that calls it."""
    name = name_of(op)
    if not name or name in table.ROWS or name in table.WAITS or name in table.LOCAL:
        return False
    if table.declared(name) or name.split("::")[0] in table.COMMUNICATING_NAMESPACES:
        return True
    overload = getattr(op, "default", None) if isinstance(op, compat.OpOverloadPacket) else op
    return isinstance(overload, compat.OpOverload) and _takes_a_group(overload)


def row_of(op: Any) -> CollectiveOp | None:
    """The table's row for a torch op; None for one that starts no collective that the table knows."""
    return table.ROWS.get(name_of(op))


@functools.lru_cache(maxsize=4096)
def _takes_a_group(op: Any) -> bool:
    arguments = op._schema.arguments
    return any(formal.name in table.GROUP_ARGUMENTS or "ProcessGroup" in str(formal.type) for formal in arguments)


def argument(node: Node, name: str) -> Any:
    """What `node` passes for the schema argument `name`, or its default; None where the op has no such argument."""
    if name in node.kwargs:
        return node.kwargs[name]
    schema = schema_of(node)
    for position, formal in enumerate(schema.arguments if schema is not None else ()):
        if formal.name == name:
            return node.args[position] if position < len(node.args) else formal.default_value
    return None


def operands(node: Node, names: tuple[str, ...]) -> list[Node]:
    """The nodes that `node` passes for the arguments `names`, lists flattened."""
    found: list[Node] = []
    for name in names:
        value = argument(node, name)
        found += [v for v in (value if isinstance(value, (list, tuple)) else [value]) if isinstance(v, Node)]
    return found


def group_name(node: Node) -> str:
    """The name of the process group a collective runs on ("" where the graph does not say)."""
    row = collective_op(node)
    value = argument(node, row.group) if row else None
    if isinstance(value, Node):
        value = example_value(value)
    if isinstance(value, (list, tuple)):  # a legacy op: ranks and a tag
        return compat.group_name_of_ranks([int(rank) for rank in value], str(argument(node, "tag") or ""))
    return str(getattr(value, "group_name", value) or "")


def reduce_op(node: Node) -> str:
    """The reduction in lower case ("sum"), "" for a collective without one."""
    row = collective_op(node)
    value = argument(node, row.reduce_op) if row and row.reduce_op else None
    return str(value).rpartition(".")[2].lower() if value is not None else ""


def group_size(node: Node) -> sympy.Expr:
    """How many ranks take part: a number, or a symbol named after the group where this process does not know."""
    row = collective_op(node)
    stated = argument(node, row.group_size) if row and row.group_size else None
    if isinstance(stated, int):
        return sympy.Integer(stated)
    ranks = compat.group_ranks(group_name(node))
    if ranks is not None:
        return sympy.Integer(len(ranks))
    return sympy.Symbol(f"ranks_of_{group_name(node) or 'unknown'}", positive=True, integer=True)


def result_bytes(node: Node) -> sympy.Expr:
    """Bytes of a collective's result on this rank, summed over a coalesced result's tensors.

    Symbolic sizes give an expression in the graph's symbols; 0 where tracing recorded no value.
    """
    return value_bytes(example_value(node))


def value_bytes(value: object) -> sympy.Expr:
    """Bytes of a tensor, or of a list of them; 0 for anything else."""
    total: sympy.Expr = sympy.Integer(0)
    for tensor in tensors(value):
        size: sympy.Expr = sympy.Integer(tensor.element_size())
        for dim in tensor.shape:
            size *= expression(dim)
        total += size
    return total


def wire_bytes(node: Node) -> sympy.Expr:
    """Bytes that this rank sends for the collective, with the usual (ring or direct) algorithm, as an expression in the
    graph's symbols. For `broadcast`, send and receive: the bytes of the tensor."""
    row = collective_op(node)
    if row is None:
        return sympy.Integer(0)
    ranks = group_size(node)
    sent = sum((value_bytes(example_value(n)) for n in operands(node, row.reads or row.writes)), sympy.Integer(0))
    if row.kind == "all_reduce":
        return 2 * (ranks - 1) * sent / ranks
    if row.kind == "all_gather":
        return (ranks - 1) * sent
    if row.kind == "reduce_scatter":  # by the result: a fused op's arguments are not what it sends
        return (ranks - 1) * result_bytes(node)
    if row.kind == "all_to_all":
        return (ranks - 1) * sent / ranks
    return sent


def expression(size: object) -> sympy.Expr:
    """A size of a traced tensor as sympy: a number, or the expression behind a SymInt."""
    return size.node.expr if isinstance(size, torch.SymInt) else sympy.Integer(size)


def tensors(value: object) -> Iterator[torch.Tensor]:
    """The tensors in a node's value: itself, or the elements of a (nested) list."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from tensors(item)
