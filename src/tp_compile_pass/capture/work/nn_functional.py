"""`torch.distributed.nn.functional`: collectives that autograd sees.

torch refuses them under compile (2.13 and later) or breaks the graph (before); here each is an autograd.Function with
torch's own formula, which Dynamo can trace.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from tp_compile_pass.capture.work import collectives
from tp_compile_pass.capture.work.calls import Group, reduction, root_of
from tp_compile_pass.compat_dynamo import Call, Variable


def _all_reduce(tensor: Any, op: str, group: str) -> Any:
    out = tensor.clone(memory_format=torch.contiguous_format)
    collectives.all_reduce([out], op, group).wait()
    return out


def _broadcast(tensor: Any, root: int, group: str) -> Any:
    out = tensor.clone(memory_format=torch.contiguous_format)
    collectives.broadcast(out, root, group).wait()
    return out


class AllReduce(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Any, op: str, group: str) -> Any:
        ctx.op, ctx.group = op, group
        return _all_reduce(tensor, op, group)

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        return _all_reduce(grad, ctx.op, ctx.group), None, None


class Broadcast(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Any, root: int, is_root: bool, group: str) -> Any:
        ctx.is_root, ctx.group = is_root, group
        return _broadcast(tensor, root, group)

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        total = _all_reduce(grad, "sum", ctx.group)
        return (total if ctx.is_root else torch.zeros_like(grad)), None, None, None


class Reduce(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Any, op: str, root: int, is_root: bool, group: str) -> Any:
        ctx.root, ctx.group = root, group
        out = tensor.clone(memory_format=torch.contiguous_format)
        collectives.reduce(out, op, is_root, group).wait()
        return out

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        return _broadcast(grad, ctx.root, ctx.group), None, None, None, None


class AllGather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Any, size: int, group: str) -> Any:
        ctx.size, ctx.group = size, group
        out = tensor.new_empty([size, *tensor.shape])
        collectives.all_gather_into_tensor([out], [tensor], size, group).wait()
        return out

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        mine = grad.new_empty(grad.shape[1:])
        collectives.reduce_scatter_tensor([mine], [grad], "sum", ctx.size, ctx.group).wait()
        return mine, None, None


class ReduceScatter(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, stacked: Any, op: str, size: int, group: str) -> Any:
        ctx.size, ctx.group = size, group
        out = stacked.new_empty(stacked.shape[1:])
        collectives.reduce_scatter_tensor([out], [stacked], op, size, group).wait()
        return out

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        whole = grad.new_empty([ctx.size, *grad.shape])
        collectives.all_gather_into_tensor([whole], [grad], ctx.size, ctx.group).wait()
        return whole, None, None, None


class AllToAllSingle(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Any, like: Any, out_splits: Any, in_splits: Any, size: int, group: str) -> Any:
        ctx.out_splits, ctx.in_splits, ctx.size, ctx.group = out_splits, in_splits, size, group
        ctx.shape = tensor.shape
        out = torch.empty_like(like)
        collectives.all_to_all_single(out, tensor, out_splits, in_splits, size, group).wait()
        return out

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        back = grad.new_empty(ctx.shape)
        collectives.all_to_all_single(back, grad, ctx.in_splits, ctx.out_splits, ctx.size, ctx.group).wait()
        return back, None, None, None, None, None


class AllToAll(torch.autograd.Function):
    """Of parts that were flattened and concatenated; the sizes count their elements."""

    @staticmethod
    def forward(ctx: Any, flat: Any, out_sizes: Any, in_sizes: Any, size: int, group: str) -> Any:
        ctx.out_sizes, ctx.in_sizes, ctx.size, ctx.group = out_sizes, in_sizes, size, group
        out = flat.new_empty(sum(out_sizes))
        collectives.all_to_all_single(out, flat, out_sizes, in_sizes, size, group).wait()
        return out

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        back = grad.new_empty(sum(ctx.in_sizes))
        collectives.all_to_all_single(back, grad, ctx.in_sizes, ctx.out_sizes, ctx.size, ctx.group).wait()
        return back, None, None, None, None


class Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Any, root: int, size: int, rank: int, group: str) -> Any:
        ctx.root, ctx.size, ctx.rank, ctx.group = root, size, rank, group
        return _gather(tensor, root, size, rank, group)

    @staticmethod
    def backward(ctx: Any, grads: Any) -> Any:
        return _scatter(grads, ctx.root, ctx.size, ctx.rank, ctx.group), None, None, None, None


class Scatter(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, stacked: Any, root: int, size: int, rank: int, group: str) -> Any:
        ctx.root, ctx.size, ctx.rank, ctx.group = root, size, rank, group
        return _scatter(stacked, root, size, rank, group)

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        return _gather(grad, ctx.root, ctx.size, ctx.rank, ctx.group), None, None, None, None


def _gather(tensor: Any, root: int, size: int, rank: int, group: str) -> Any:
    """What all ranks sent, stacked, on the root; zeros elsewhere."""
    out = tensor.new_zeros([size, *tensor.shape])
    collectives.gather(tensor.contiguous(), list(out.unbind(0)), root, size, rank, group).wait()
    return out


def _scatter(stacked: Any, root: int, size: int, rank: int, group: str) -> Any:
    out = stacked.new_zeros(stacked.shape[1:])
    collectives.scatter(out, list(stacked.unbind(0)), root, size, rank, group).wait()
    return out


def all_reduce(call: Call, group: Group) -> Variable:
    return call.inline(_apply_all_reduce, call.arguments["tensor"], reduction(call), group.name)


def broadcast(call: Call, group: Group) -> Variable:
    root = root_of(call, group, "src")
    return call.inline(_apply_broadcast, call.arguments["tensor"], root, root == group.rank, group.name)


def reduce(call: Call, group: Group) -> Variable:
    root, op = root_of(call, group, "dst"), reduction(call)
    return call.inline(_apply_reduce, call.arguments["tensor"], op, root, root == group.rank, group.name)


def all_gather(call: Call, group: Group) -> Variable:
    return call.inline(_apply_all_gather, call.arguments["tensor"], group.size, group.name)


def reduce_scatter(call: Call, group: Group) -> Variable:
    output, inputs = call.arguments["output"], call.arguments["input_list"]
    return call.inline(_apply_reduce_scatter, output, inputs, reduction(call), group.size, group.name)


def all_to_all_single(call: Call, group: Group) -> Variable:
    splits = [call.arguments.get(name) for name in ("output_split_sizes", "input_split_sizes")]
    output, tensor = call.arguments["output"], call.arguments["input"]
    return call.inline(_apply_all_to_all_single, output, tensor, *splits, group.size, group.name)


def all_gather_base(call: Call, group: Group) -> Variable:
    output, tensor = call.arguments["output_tensor"], call.arguments["input_tensor"]
    return call.inline(_apply_all_gather_base, output, tensor, group.size, group.name)


def all_to_all(call: Call, group: Group) -> Variable:
    outputs, inputs = call.arguments["output_tensor_list"], call.arguments["input_tensor_list"]
    return call.inline(_apply_all_to_all, outputs, inputs, group.size, group.name)


def gather(call: Call, group: Group) -> Variable:
    root = root_of(call, group, "dst")
    return call.inline(_apply_gather, call.arguments["tensor"], root, group.size, group.rank, group.name)


def scatter(call: Call, group: Group) -> Variable:
    root = root_of(call, group, "src")
    return call.inline(_apply_scatter, call.arguments["tensors"], root, group.size, group.rank, group.name)


def _filled(output: Any, result: Any) -> Any:
    """As in eager, `output` holds the result too, unseen by autograd."""
    with torch.no_grad():
        output.copy_(result)
    return result


def _apply_all_reduce(tensor: Any, op: str, group: str) -> Any:
    return AllReduce.apply(tensor, op, group)


def _apply_broadcast(tensor: Any, root: int, is_root: bool, group: str) -> Any:
    return Broadcast.apply(tensor, root, is_root, group)


def _apply_reduce(tensor: Any, op: str, root: int, is_root: bool, group: str) -> Any:
    return Reduce.apply(tensor, op, root, is_root, group)


def _apply_all_gather(tensor: Any, size: int, group: str) -> Any:
    return AllGather.apply(tensor, size, group).unbind(0)


def _apply_reduce_scatter(output: Any, inputs: Any, op: str, size: int, group: str) -> Any:
    return _filled(output, ReduceScatter.apply(torch.stack(list(inputs)), op, size, group).view(output.shape))


def _apply_all_to_all_single(output: Any, tensor: Any, outs: Any, ins: Any, size: int, group: str) -> Any:
    return _filled(output, AllToAllSingle.apply(tensor, output, outs, ins, size, group))


def _apply_all_gather_base(output: Any, tensor: Any, size: int, group: str) -> Any:
    return _filled(output, AllGather.apply(tensor, size, group).view(output.shape))


def _apply_all_to_all(outputs: Any, inputs: Any, size: int, group: str) -> Any:
    flat = torch.cat([t.reshape(-1) for t in inputs])
    sizes = [t.numel() for t in outputs]
    received = AllToAll.apply(flat, sizes, [t.numel() for t in inputs], size, group)
    parts = received.split(sizes)
    for i in range(len(outputs)):  # as in eager, these tensors themselves are what has the gradient
        outputs[i].copy_(parts[i].view(outputs[i].shape))
    return tuple(outputs)


def _apply_gather(tensor: Any, root: int, size: int, rank: int, group: str) -> Any:
    return Gather.apply(tensor, root, size, rank, group).unbind(0)


def _apply_scatter(tensors: Any, root: int, size: int, rank: int, group: str) -> Any:
    return Scatter.apply(torch.stack(list(tensors)), root, size, rank, group)


#: Functions of torch.distributed.nn.functional → body.
FUNCTIONS: dict[str, Callable[[Call, Group], Variable]] = {
    "all_reduce": all_reduce,
    "broadcast": broadcast,
    "reduce": reduce,
    "all_gather": all_gather,
    "reduce_scatter": reduce_scatter,
    "all_to_all_single": all_to_all_single,
    "_all_gather_base": all_gather_base,
    "all_to_all": all_to_all,
    "gather": gather,
    "scatter": scatter,
}
