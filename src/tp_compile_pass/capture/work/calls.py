"""From the arguments of a dist.* call to the body that is traced in its place."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch.distributed as dist

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


def group_of(call: Call) -> Group:
    """The call's process group. Reading its name through Dynamo guards on it."""
    given = call.arguments.get("group")
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
    from torch.distributed._functional_collectives import REDUCE_OP_TO_STR

    op = call.constant("op")
    name = REDUCE_OP_TO_STR.get(op) if not isinstance(op, str) else op
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


def reduce_scatter_tensor(call: Call, group: Group) -> Variable:
    output, tensor = (call.arguments[name] for name in list(call.parameters)[:2])
    op = reduction(call)
    return call.inline(collectives.reduce_scatter_tensor, [output], [tensor], op, group.size, group.name)


def all_to_all_single(call: Call, group: Group) -> Variable:
    splits = [call.arguments.get(name) for name in ("output_split_sizes", "input_split_sizes")]
    output, tensor = (call.arguments[name] for name in list(call.parameters)[:2])
    return call.inline(collectives.all_to_all_single, output, tensor, *splits, group.size, group.name)


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
}
