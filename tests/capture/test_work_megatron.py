"""A Megatron-style pair of tensor-parallel layers whose backward overlaps communication, trained as in eager."""

import pytest
import torch
import torch.distributed as dist
from torch import nn

from tp_compile_pass.testing import RankPool, deferred
from training import losses_of

pytestmark = pytest.mark.matrix


class ColumnLinear(torch.autograd.Function):
    """y = x @ w.T with w sharded by rows. Backward reduces the input's gradient while it computes the weight's."""

    @staticmethod
    def forward(ctx, x, weight, sequence_parallel):
        ctx.save_for_backward(x, weight)
        ctx.sequence_parallel = sequence_parallel
        return gathered(x, sequence_parallel) @ weight.t()

    @staticmethod
    def backward(ctx, grad):
        x, weight = ctx.saved_tensors
        total, regather = x, None
        if ctx.sequence_parallel:
            total = x.new_empty(x.shape[0] * dist.get_world_size(), x.shape[1])
            regather = dist.all_gather_into_tensor(total, x.contiguous(), async_op=True)
        grad_input = grad @ weight
        if regather is not None:
            regather.wait()
        if ctx.sequence_parallel:
            out = torch.empty_like(x)
            handle = dist.reduce_scatter_tensor(out, grad_input, async_op=True)
        else:
            out = grad_input
            handle = dist.all_reduce(out, async_op=True)
        grad_weight = grad.t() @ total
        handle.wait()
        return out, grad_weight, None


class RowLinear(torch.autograd.Function):
    """y = sum over ranks of x @ w.T with w sharded by columns."""

    @staticmethod
    def forward(ctx, x, weight, sequence_parallel):
        ctx.save_for_backward(x, weight)
        ctx.sequence_parallel = sequence_parallel
        partial = x @ weight.t()
        if not sequence_parallel:
            work = dist.all_reduce(partial, async_op=True)
            work.wait()
            return partial
        out = partial.new_empty(partial.shape[0] // dist.get_world_size(), partial.shape[1])
        work = dist.reduce_scatter_tensor(out, partial, async_op=True)
        work.wait()
        return out

    @staticmethod
    def backward(ctx, grad):
        x, weight = ctx.saved_tensors
        grad = gathered(grad, ctx.sequence_parallel)
        return grad @ weight, grad.t() @ x, None


def gathered(x, sequence_parallel):
    if not sequence_parallel:
        return x
    out = x.new_empty(x.shape[0] * dist.get_world_size(), x.shape[1])
    work = dist.all_gather_into_tensor(out, x.contiguous(), async_op=True)
    work.wait()
    return out


class Block(nn.Module):
    def __init__(self, width, hidden, sequence_parallel):
        super().__init__()
        ranks = dist.get_world_size()
        torch.manual_seed(dist.get_rank())
        self.up = nn.Parameter(torch.randn(hidden // ranks, width) * 0.3)
        self.down = nn.Parameter(torch.randn(width, hidden // ranks) * 0.3)
        self.sequence_parallel = sequence_parallel

    def forward(self, x):
        h = torch.nn.functional.gelu(ColumnLinear.apply(x, self.up, self.sequence_parallel))
        return RowLinear.apply(h, self.down, self.sequence_parallel)


def train(sequence_parallel, compiled, inner, steps=20):
    torch._dynamo.reset()
    model = Block(8, 16, sequence_parallel)
    run = model
    if compiled:
        run = torch.compile(model, backend="tp_inductor", fullgraph=True, options={"tp.inner": inner})
    torch.manual_seed(7)
    rows = 8 // dist.get_world_size() if sequence_parallel else 8
    x, y = torch.randn(8, 8), torch.randn(8, 8)
    if sequence_parallel:
        mine = slice(dist.get_rank() * rows, (dist.get_rank() + 1) * rows)
        x, y = x[mine], y[mine]
    losses = losses_of(model.parameters(), lambda: (run(x) - y).square().sum(), steps, lr=0.01)
    return losses, [p.detach().clone() for p in model.parameters()]


def trained_alike(inner):
    for sequence_parallel in (False, True):
        expected = train(sequence_parallel, False, inner)
        actual = train(sequence_parallel, True, inner)
        torch.testing.assert_close(actual, expected)
        assert expected[0][-1] < expected[0][0]
        assert deferred.pending() == []


@pytest.mark.parametrize(("world_size", "backend", "inner"), [(2, "gloo", "inductor"), (4, "deferred", "aot_eager")])
def test_twenty_steps_as_in_eager(world_size, backend, inner):
    with RankPool(world_size, backend, setup=deferred.register, timeout=400) as ranks:
        ranks.run(trained_alike, inner)
