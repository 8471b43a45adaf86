"""What one graph node does with memory: which arguments it reads, which it writes, and which its result shares.

For torch ops the schema says it. Python functions and methods, which only Dynamo's graphs hold, are known by name; one
that is not known reads its arguments and returns fresh memory.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from torch.fx import Node

from tp_compile_pass.ir import collectives

#: Ops that look at sizes, strides or dtype only, or allocate alike.
METADATA_OPS = frozenset(
    {
        *("sym_size", "sym_stride", "sym_numel", "sym_storage_offset", "sym_is_contiguous", "_assert_tensor_metadata"),
        *("empty_like", "zeros_like", "ones_like", "full_like", "rand_like", "randn_like", "randint_like"),
        *("new_empty", "new_zeros", "new_ones", "new_full", "new_empty_strided"),
    }
)
#: Ops whose result shares memory with their first argument although their schema does not say so.
SILENT_VIEWS = frozenset({"aten::_unsafe_view", "aten::lift_fresh", "prims::view_of"})

#: Attributes and methods of a tensor, and functions of it, that look at no data.
METADATA_NAMES = frozenset(
    {
        *("size", "shape", "dim", "ndim", "numel", "nelement", "stride", "storage_offset", "element_size", "dtype"),
        *("device", "layout", "requires_grad", "requires_grad_", "is_contiguous", "is_floating_point", "is_complex"),
        *("is_cuda", "is_leaf", "itemsize", "nbytes", "__len__", "type", "is_inference", "__len__", "record_stream"),
        *METADATA_OPS,
    }
)
#: Attributes, methods and functions whose result shares memory with the tensor (or may: `reshape`, `to`, `contiguous`).
VIEW_NAMES = frozenset(
    {
        *("view", "reshape", "t", "T", "mT", "H", "mH", "transpose", "permute", "movedim", "swapaxes", "flatten"),
        *("unflatten", "ravel", "expand", "expand_as", "view_as", "reshape_as", "squeeze", "unsqueeze", "narrow"),
        *("select", "chunk", "split", "split_with_sizes", "tensor_split", "unbind", "unfold", "diagonal", "detach"),
        *("alias", "data", "real", "imag", "as_strided", "contiguous", "to", "float", "half", "bfloat16", "double"),
        *("__getitem__", "getitem", "_local_tensor", "elem", "to_local", "from_local", "identity", "view_as_real"),
    }
)


@dataclass
class Access:
    """Reads and writes are argument values (nodes, or lists of them); `shares` those that the result lives in."""

    reads: list[Any] = field(default_factory=list)
    writes: list[Any] = field(default_factory=list)
    shares: list[Any] = field(default_factory=list)


def access(node: Node) -> Access:
    """What `node`, a call without nested graphs, does with its arguments."""
    schema = collectives.schema_of(node)
    if schema is not None:
        return _by_schema(node, schema)
    return _by_name(node)


def _by_schema(node: Node, schema: Any) -> Access:
    name = schema.name
    found = Access()
    if name.partition("::")[2] in METADATA_OPS:
        return found
    fresh = all(result.alias_info is None for result in schema.returns)
    for position, formal in enumerate(schema.arguments):
        if formal.name in node.kwargs:
            value = node.kwargs[formal.name]
        elif position < len(node.args) and not formal.kwarg_only:
            value = node.args[position]
        else:
            continue
        alias = formal.alias_info
        if alias is None:
            if name in SILENT_VIEWS and position == 0:
                found.shares.append(value)
            else:
                found.reads.append(value)
            continue
        if alias.is_write:
            found.writes.append(value)
        if not fresh:
            found.shares.append(value)
        elif not alias.is_write:
            found.reads.append(value)
    return found


def _by_name(node: Node) -> Access:
    name = str(node.target) if node.op == "call_method" else str(getattr(node.target, "__name__", node.target))
    arguments = [*node.args, *node.kwargs.values()]
    if name == "getattr":
        name = str(node.args[1]) if len(node.args) > 1 else ""
    if name in METADATA_NAMES:
        return Access()
    if name in VIEW_NAMES:
        return Access(reads=arguments[1:], shares=arguments[:1])
    if "out" in node.kwargs:
        out = node.kwargs["out"]
        return Access(reads=[a for a in arguments if a is not out], writes=[out], shares=[out])
    if _in_place(node, name):
        return Access(reads=arguments[1:], writes=arguments[:1], shares=arguments[:1])
    return Access(reads=arguments)


def _in_place(node: Node, name: str) -> bool:
    if name in ("setitem", "__setitem__"):
        return True
    if getattr(node.target, "__module__", "") in ("operator", "_operator"):
        return name.startswith("i") and name[1:] in (
            "add",
            "sub",
            "mul",
            "truediv",
            "floordiv",
            "pow",
            "and",
            "or",
            "xor",
        )
    return name.endswith("_") and not name.endswith("__")
