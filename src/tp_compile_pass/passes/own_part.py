"""Where a graph takes the part of a tensor that has this rank's number in a process group.

A graph has the rank as a constant. On rank 0 it cannot be told from code in which every rank takes the first part, and
the ranks would then start different collectives. What is built on this needs the user's word (`tp.own_part`).
"""

from __future__ import annotations

import torch
from torch.fx import Node

from tp_compile_pass import compat
from tp_compile_pass.ir import collectives, walk

aten = torch.ops.aten
NOT_ALLOWED = "on rank 0 it looks like the first part on every rank (tp.own_part=True, if each takes its own)"


def source_of_own_part(node: Node, group: str) -> Node | None:
    """The tensor of which `node` is the own part along its first dimension that is longer than 1, cut into as many
    equal parts as `group` has ranks; None where it is something else. Copies of a part count as the part."""
    while walk.is_op(node, aten.clone.default, aten.contiguous.default) and isinstance(node.args[0], Node):
        node = node.args[0]
    cut = _by_split(node) or _by_slice(node)
    ranks, rank = compat.group_ranks(group), compat.rank_in_group(group)
    if cut is None or ranks is None or rank is None or len(ranks) < 2:
        return None
    source, dim, start, length = cut
    value = walk.example_value(source)
    if not isinstance(value, torch.Tensor) or value.dim() <= dim:
        return None
    size = value.shape[dim]
    if any(not isinstance(number, int) for number in (*value.shape[: dim + 1], start, length)):
        return None
    if any(outer != 1 for outer in value.shape[:dim]) or size != length * len(ranks) or start != rank * length:
        return None
    return source


def _by_slice(node: Node) -> tuple[Node, int, int, int] | None:
    """(source, dimension, start, length) of a slice with step 1, or of slices of slices in one dimension: ranks that
    write the same in another way (`x[n:]`, `x[:n]`) must come to the same."""
    if not walk.is_op(node, aten.slice.Tensor):
        return None
    source, dim, start, end, step = (
        collectives.argument(node, name) for name in ("self", "dim", "start", "end", "step")
    )
    value = walk.example_value(source) if isinstance(source, Node) else None
    if not isinstance(value, torch.Tensor) or step != 1 or not isinstance(start or 0, int):
        return None
    dim %= value.dim()
    size, start = value.shape[dim], start or 0
    if not isinstance(size, int) or not isinstance(end if end is not None else size, int):
        return None
    start = max(start + size, 0) if start < 0 else start
    end = size if end is None else min(end + size if end < 0 else end, size)
    outer = _by_slice(source)
    if outer is not None and outer[1] == dim:
        return outer[0], dim, outer[2] + start, end - start
    return source, dim, start, end - start


def _by_split(node: Node) -> tuple[Node, int, int, int] | None:
    """The same of an element of `split` or `split_with_sizes`."""
    split = node.args[0] if getattr(node.target, "__name__", "") == "getitem" and node.op == "call_function" else None
    if not isinstance(split, Node) or not walk.is_op(split, aten.split.Tensor, aten.split_with_sizes.default):
        return None
    source, dim, number = split.args[0], collectives.argument(split, "dim"), node.args[1]
    values, value = walk.example_value(split), walk.example_value(node)
    if not isinstance(source, Node) or not isinstance(value, torch.Tensor) or not isinstance(number, int):
        return None
    dim %= value.dim()
    lengths = [part.shape[dim] for part in collectives.tensors(values)]
    return source, dim, sum(lengths[:number]), lengths[number]
