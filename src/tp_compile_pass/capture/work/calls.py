"""From the arguments of a dist.* call to the body that is traced in its place."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from tp_compile_pass import compat, compat_dynamo
from tp_compile_pass.capture.work import collectives
from tp_compile_pass.compat_dynamo import Call, NotConstant, Variable, constant


class CannotCapture(Exception):
    """The call keeps torch's treatment. The message says why, in the user's terms."""


@dataclass(frozen=True)
class Group:
    """A process group as far as tracing needs it: name, size, this rank's number in it (-1: not in it)."""

    name: str
    size: int
    rank: int
    real: Any


def group_of(call: Call, given: Variable | None = None) -> Group:
    """The process group `given`, else the call's. Reading its name through Dynamo guards on it."""
    given = call.arguments.get("group") if given is None else given
    try:
        real = None if given is None else constant(given, "group")
    except NotConstant as error:
        raise CannotCapture(str(error)) from None
    if real is None:
        real = dist.group.WORLD
        if real is None:
            raise CannotCapture("torch.distributed is not initialised")
        return Group(real.group_name, real.size(), real.rank(), real)
    if not isinstance(real, dist.ProcessGroup):
        if real == dist.GroupMember.NON_GROUP_MEMBER:
            return Group("", 0, -1, None)
        raise CannotCapture(f"group is a {type(real).__name__}")
    name = constant(call.inline(_name_of, given), "group")
    return Group(name, real.size(), real.rank(), real)


def _name_of(group: dist.ProcessGroup) -> str:
    return group.group_name


def reduction(call: Call) -> str:
    """The reduce op as functional collectives spell it."""
    op = call.constant("op")
    name = compat.reduce_op_name(op) if not isinstance(op, str) else op
    if name is None:
        raise CannotCapture(f"no functional collective reduces by {op}")
    return name


def root_of(call: Call, group: Group, name: str) -> int:
    """The number inside the group of the rank that `src`/`dst` or `group_src`/`group_dst` names."""
    inside = call.constant(f"group_{name}")
    if inside is not None:
        return int(inside)
    outside = call.constant(name)
    if outside is None:
        raise CannotCapture(f"{name} is not given")
    return int(dist.get_group_rank(group.real, int(outside)))


def all_reduce(call: Call, group: Group) -> Variable:
    return call.inline(collectives.all_reduce, [call.arguments["tensor"]], reduction(call), group.name)


def all_reduce_coalesced(call: Call, group: Group) -> Variable:
    return call.inline(collectives.all_reduce, call.arguments["tensors"], reduction(call), group.name)


def broadcast(call: Call, group: Group) -> Variable:
    root = root_of(call, group, "src")
    return call.inline(collectives.broadcast, call.arguments["tensor"], root, group.name)


def reduce(call: Call, group: Group) -> Variable:
    is_root = root_of(call, group, "dst") == group.rank
    return call.inline(collectives.reduce, call.arguments["tensor"], reduction(call), is_root, group.name)


def all_gather_into_tensor(call: Call, group: Group) -> Variable:
    output, tensor = (call.arguments[name] for name in list(call.parameters)[:2])
    return call.inline(collectives.all_gather_into_tensor, [output], [tensor], group.size, group.name)


def is_stacked(call: Call) -> bool:
    """Whether one of two tensors has the ranks as an extra dimension, which torch's synchronous form cannot take."""
    names = list(call.parameters)[:2]
    dims = [compat_dynamo.tensor_dims(call.arguments[name]) for name in names if name in call.arguments]
    return len(dims) == 2 and None not in dims and dims[0] != dims[1]


def reduce_scatter_tensor(call: Call, group: Group) -> Variable:
    output, tensor = (call.arguments[name] for name in list(call.parameters)[:2])
    op = reduction(call)
    return call.inline(collectives.reduce_scatter_tensor, [output], [tensor], op, group.size, group.name)


def all_to_all_single(call: Call, group: Group) -> Variable:
    splits = [call.arguments.get(name) for name in ("output_split_sizes", "input_split_sizes")]
    output, tensor = (call.arguments[name] for name in list(call.parameters)[:2])
    return call.inline(collectives.all_to_all_single, output, tensor, *splits, group.size, group.name)


def all_gather(call: Call, group: Group) -> Variable:
    outputs, tensor = call.arguments["tensor_list"], call.arguments["tensor"]
    return call.inline(collectives.all_gather, outputs, tensor, group.size, group.rank, group.name)


def reduce_scatter(call: Call, group: Group) -> Variable:
    output, inputs = call.arguments["output"], call.arguments["input_list"]
    return call.inline(collectives.reduce_scatter, output, inputs, reduction(call), group.size, group.name)


def all_to_all(call: Call, group: Group) -> Variable:
    outputs, inputs = call.arguments["output_tensor_list"], call.arguments["input_tensor_list"]
    return call.inline(collectives.all_to_all, outputs, inputs, group.name)


def gather(call: Call, group: Group) -> Variable:
    root, outputs = root_of(call, group, "dst"), call.arguments.get("gather_list")
    tensor = call.arguments["tensor"]
    return call.inline(collectives.gather, tensor, outputs, root, group.size, group.rank, group.name)


def scatter(call: Call, group: Group) -> Variable:
    root, inputs = root_of(call, group, "src"), call.arguments.get("scatter_list")
    tensor = call.arguments["tensor"]
    return call.inline(collectives.scatter, tensor, inputs, root, group.size, group.rank, group.name)


def barrier(call: Call, group: Group) -> Variable:
    return call.inline(collectives.barrier, compat.group_device(group.real), group.name)


def isend(call: Call, group: Group) -> Variable:
    return _p2p(call, group, "dst", collectives.send)


def irecv(call: Call, group: Group) -> Variable:
    return _p2p(call, group, "src", collectives.receive)


def _p2p(call: Call, group: Group, name: str, body: Callable[..., Any]) -> Variable:
    _require_p2p_ops()
    tensor, tag = call.arguments["tensor"], call.constant("tag")
    return call.inline(body, tensor, root_of(call, group, name), tag, group.name)


def _require_p2p_ops() -> None:
    if not compat.has_p2p_ops():
        raise CannotCapture(f"torch {torch.__version__} has no functional send and receive")


def batch_isend_irecv(call: Call, group: Group) -> Variable:
    """`group` is the default group; what counts is the group of the first P2POp, as in eager."""
    _require_p2p_ops()
    ops = call.arguments["p2p_op_list"]
    kinds = [constant(op, "op").__name__ for op in _each(call, _ops, ops)]
    given = _each(call, _groups, ops)[0]
    group = group_of(call, given)
    peers = [int(dist.get_group_rank(group.real, constant(peer, "peer"))) for peer in _each(call, _peers, ops)]
    tags = [constant(tag, "tag") for tag in _each(call, _tags, ops)]
    return call.inline(collectives.batch_p2p, kinds, peers, tags, call.inline(_tensors, ops), group.name)


def _each(call: Call, field: Callable[..., Any], ops: Variable) -> list[Variable]:
    found = compat_dynamo.items(call.inline(field, ops))
    if not found:
        raise CannotCapture("p2p_op_list is not a list whose length is known while tracing")
    return found


def _ops(ops: Any) -> Any:
    return [p2p.op for p2p in ops]


def _groups(ops: Any) -> Any:
    return [p2p.group for p2p in ops]


def _peers(ops: Any) -> Any:
    return [p2p.peer for p2p in ops]


def _tags(ops: Any) -> Any:
    return [p2p.tag for p2p in ops]


def _tensors(ops: Any) -> Any:
    return [p2p.tensor for p2p in ops]


Body = Callable[[Call, Group], Variable]
#: dist function → (body, whether torch itself captures the synchronous form).
CALLS: dict[str, tuple[Body, bool]] = {
    "all_reduce": (all_reduce, True),
    "all_reduce_coalesced": (all_reduce_coalesced, False),
    "broadcast": (broadcast, False),
    "reduce": (reduce, False),
    "all_gather_into_tensor": (all_gather_into_tensor, True),
    "all_gather_single": (all_gather_into_tensor, True),
    "_all_gather_base": (all_gather_into_tensor, True),
    "reduce_scatter_tensor": (reduce_scatter_tensor, True),
    "reduce_scatter_single": (reduce_scatter_tensor, True),
    "_reduce_scatter_base": (reduce_scatter_tensor, True),
    "all_to_all_single": (all_to_all_single, True),
    "all_gather": (all_gather, compat.TRACES_ALL_GATHER_LISTS),
    "reduce_scatter": (reduce_scatter, False),
    "all_to_all": (all_to_all, False),
    "gather": (gather, False),
    "scatter": (scatter, False),
    "barrier": (barrier, False),
    "isend": (isend, False),
    "irecv": (irecv, False),
    "batch_isend_irecv": (batch_isend_irecv, False),
}
#: Those that return handles whatever `async_op` says, for they have no such parameter.
ALWAYS_ASYNC = ("isend", "irecv", "batch_isend_irecv")
