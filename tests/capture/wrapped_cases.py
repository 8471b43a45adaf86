"""More of `boundary_cases`: async tensors inside DTensors and other wrapper subclasses."""

import torch
from boundary_cases import backward, case, leaf, mesh, reduced, sharded, weight
from torch.distributed.tensor import DTensor, Replicate
from torch.testing._internal.two_tensor import TwoTensor


@case
def dtensor(compile_):
    x, w = leaf(), weight()
    return backward(compile_(lambda d, w: (d * 2).to_local() @ w)(sharded(x), w), x, w)


@case
def dtensor_residual_in_eager(compile_):
    x = leaf()
    d = sharded(x)
    return backward((d + compile_(lambda d: d.sin() * d)(d)).to_local(), x)


@case
def dtensor_without_history(compile_):
    return [compile_(lambda d: (d * 2 + 1).to_local())(sharded(leaf().detach()))]


@case
def dtensor_only_viewed(compile_):
    x = leaf()
    return backward(compile_(lambda d: d.view(-1))(sharded(x)).to_local() * 3, x)


@case
def dtensor_local_returned(compile_):
    x = leaf()
    return backward(compile_(lambda d: (d.to_local(), d.sin().to_local()))(sharded(x)), x)


@case
def dtensor_mutated(compile_):
    d = sharded(leaf().detach())

    def region(d):
        d.mul_(2)
        return (d + 1).to_local()

    return [compile_(region)(d), d.to_local() * 1]


@case
def dtensor_dynamic(compile_):
    region, found = compile_(lambda d: (d * 2).sin().to_local(), dynamic=True), []
    for rows in (4, 6, 9):
        x = leaf(rows)
        found += backward(region(sharded(x)), x)
    return found


@case
def dtensor_sometimes_ready(compile_):
    region, found = compile_(lambda d: (d * d).to_local()), []
    for step in range(4):
        x = leaf(k=step)
        d = sharded(x)
        if step % 2 == 0:
            d = DTensor.from_local(d.to_local() * 1, mesh(), [Replicate()], run_check=False)
        found += backward(region(d), x)
    return found


@case
def deeper_nesting(compile_):
    x = leaf().detach()
    both = TwoTensor(sharded(x), sharded(x + 1))
    result = compile_(lambda t: t * 2 + 1)(both)
    return [result.a.to_local(), result.b.to_local()]


@case
def nested_with_history(compile_):
    x, w = leaf(), weight()
    y = compile_(lambda t, w: (t @ w).sin())(Pair.apply(x), w)
    y.sum().backward()
    return [y.a.detach() * 1, y.b.detach() * 1, x.grad.a * 1 if isinstance(x.grad, TwoTensor) else x.grad]


class Pair(torch.autograd.Function):
    """Tensor → TwoTensor of two async tensors."""

    @staticmethod
    def forward(ctx, x):
        return TwoTensor(reduced(x), reduced(x + 1))

    @staticmethod
    def backward(ctx, grad):
        return grad.a + grad.b if isinstance(grad, TwoTensor) else grad


@case
def deeper_nesting_with_history(compile_):
    x = leaf()
    y = compile_(lambda t: (t * t).sin())(PairOfDTensors.apply(x))
    y.sum().backward()
    return [y.a.to_local().detach() * 1, y.b.to_local().detach() * 1, x.grad]


class PairOfDTensors(torch.autograd.Function):
    """Tensor → TwoTensor of two DTensors whose local tensors are async."""

    @staticmethod
    def forward(ctx, x):
        return TwoTensor(sharded(x), sharded(x + 1))

    @staticmethod
    def backward(ctx, grad):
        total = grad.a.to_local() + grad.b.to_local()
        return total.chunk(mesh().size())[mesh().get_local_rank()]


@case
def subclass_inside_a_dtensor(compile_):
    both = TwoTensor(reduced(leaf()), reduced(leaf() + 1))
    d = DTensor.from_local(both, mesh(), [Replicate()], run_check=False)
    result = compile_(lambda d: d * 2 + 1)(d).to_local()
    return [result.a, result.b]
