"""The programs measured, written as their authors would: nothing in them knows which backend compiles them.

Each is built on a process group. Built on a group whose collectives do nothing, the same source is its compute alone.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module


@dataclass(frozen=True)
class Size:
    tokens: int
    width: int
    hidden: int
    layers: int


FULL, TINY = Size(1024, 1024, 2048, 4), Size(32, 32, 64, 2)


@dataclass
class Case:
    """`function(*args)` is one call. Where `trains`, its backward is what is timed. `sent`: the elements (float32) of
    each all_reduce in what is timed."""

    function: Callable[..., Any]
    args: tuple[torch.Tensor, ...]
    sent: list[int]
    trains: bool = False


@dataclass(frozen=True)
class Program:
    """`beside`: the link is set so that communication takes this share of the timed compute, which is what lies beside
    it. `whole`: Inductor takes it with fullgraph=True."""

    build: Callable[[dist.ProcessGroup, Size], Case]
    what: str
    beside: float = 1.0
    whole: bool = True


def _weights(size: Size, *shapes: tuple[int, int]) -> list[list[torch.Tensor]]:
    generator = torch.Generator().manual_seed(0)
    return [[torch.randn(shape, generator=generator) / shape[0] ** 0.5 for shape in shapes] for _ in range(size.layers)]


def _rows(size: Size) -> torch.Tensor:
    return torch.randn(size.tokens, size.width, generator=torch.Generator().manual_seed(1))


def _mlp_stack(parts: int) -> Callable[[dist.ProcessGroup, Size], Case]:
    def build(group: dist.ProcessGroup, size: Size) -> Case:
        part = size.hidden // group.size()
        weights = _weights(size, (size.width, part), (part, size.width))

        def whole(x):
            for up, down in weights:
                x = (x + funcol.all_reduce(F.relu(x @ up) @ down, "sum", group)) / 2
            return x

        def interleaved(x):
            rows, sums = list(x.chunk(parts)), [None] * parts
            for up, down in weights:
                for i in range(parts):
                    if sums[i] is not None:
                        rows[i] = (rows[i] + sums[i]) / 2
                    sums[i] = funcol.all_reduce(F.relu(rows[i] @ up) @ down, "sum", group)
            return torch.cat([(row + total) / 2 for row, total in zip(rows, sums, strict=True)])

        sent = [size.tokens * size.width // parts] * (size.layers * parts)
        return Case(whole if parts == 1 else interleaved, (_rows(size),), sent)

    return build


class _MLP(nn.Module):
    def __init__(self, size: Size) -> None:
        super().__init__()
        self.up = nn.Linear(size.width, size.hidden, bias=False)
        self.down = nn.Linear(size.hidden, size.width, bias=False)

    def forward(self, x):
        return x + self.down(F.relu(self.up(x)))


def _dtensor_step(group: dist.ProcessGroup, size: Size) -> Case:
    # DTensor's caches tell meshes apart by their dimensions' names, not by their groups.
    mesh = DeviceMesh.from_group(group, "cpu", mesh_dim_names=(group.group_name,))
    layers = size.layers // 2  # DTensor takes long to trace
    model = nn.Sequential(*(_MLP(size) for _ in range(layers)))
    for block in model:
        parallelize_module(block, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            local = parameter.to_local()
            local.copy_(torch.randn(local.shape, generator=generator) / size.hidden**0.5)
    return Case(model, (_rows(size).requires_grad_(),), [size.tokens * size.width] * layers, trains=True)


class _Column(torch.autograd.Function):
    """x @ weight, whose backward sums the input's gradient over the ranks while it computes the weight's."""

    @staticmethod
    def forward(ctx, x, weight, group):
        ctx.save_for_backward(x, weight)
        ctx.group = group
        return x @ weight

    @staticmethod
    def backward(ctx, grad):
        x, weight = ctx.saved_tensors
        grad_x = grad @ weight.t()
        handle = dist.all_reduce(grad_x, group=ctx.group, async_op=True)
        grad_weight = x.t() @ grad
        handle.wait()
        return grad_x, grad_weight, None


class _Row(torch.autograd.Function):
    """x @ weight, summed over the ranks."""

    @staticmethod
    def forward(ctx, x, weight, group):
        ctx.save_for_backward(x, weight)
        out = x @ weight
        dist.all_reduce(out, group=group, async_op=True).wait()
        return out

    @staticmethod
    def backward(ctx, grad):
        x, weight = ctx.saved_tensors
        return grad @ weight.t(), x.t() @ grad, None


def _handle_pair(group: dist.ProcessGroup, size: Size) -> Case:
    part, layers = size.hidden // group.size(), size.layers // 2
    weights = _weights(size, (size.width, part), (part, size.width))[:layers]
    for weight in (weight for pair in weights for weight in pair):
        weight.requires_grad_()

    def model(x):
        for up, down in weights:
            x = x + _Row.apply(F.relu(_Column.apply(x, up, group)), down, group)
        return x

    return Case(model, (_rows(size).requires_grad_(),), [size.tokens * size.width] * layers, trains=True)


def _two_half_block(group: dist.ProcessGroup, size: Size) -> Case:
    batch, heads, layers = 4, 4, size.layers // 2
    part, width = size.hidden // group.size(), size.width // group.size()
    shapes = (size.width, 3 * width), (width, size.width), (size.width, part), (part, size.width)
    weights = _weights(size, *shapes)

    def attention(x, qkv, out):
        q, k, v = (x @ qkv).view(*x.shape[:2], 3, heads, -1).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return mixed.transpose(1, 2).reshape(*x.shape[:2], -1) @ out

    def mlp(x, up, down):
        return F.relu(x @ up) @ down

    def model(x):
        halves, sums, works = list(x.chunk(2)), [None, None], [None, None]
        for qkv, out, up, down in weights[:layers]:
            for layer, one, two in ((attention, qkv, out), (mlp, up, down)):
                for i in range(2):
                    if works[i] is not None:
                        works[i].wait()
                        halves[i] = (halves[i] + sums[i]) / 2
                    sums[i] = layer(halves[i], one, two)
                    works[i] = dist.all_reduce(sums[i], group=group, async_op=True)
        for i in range(2):
            works[i].wait()
        return torch.cat([(half + total) / 2 for half, total in zip(halves, sums, strict=True)])

    x = _rows(size).view(batch, -1, size.width)
    return Case(model, (x,), [x.numel() // 2] * (4 * layers))


PROGRAMS = {
    "plain": Program(_mlp_stack(1), "an MLP stack as users write it: nothing lies beside its all_reduces"),
    "halves": Program(_mlp_stack(2), "the same, its batch in two halves interleaved by hand"),
    "quarters": Program(_mlp_stack(4), "the same in quarters"),
    "column step": Program(_dtensor_step, "backward of DTensor's column- and row-parallel MLPs", beside=0.25),
    "handle pair": Program(
        _handle_pair, "backward of the same with Work handles in an autograd.Function", beside=0.25, whole=False
    ),
    "two halves": Program(_two_half_block, "attention and MLP on two half batches, with Work handles", whole=False),
}
