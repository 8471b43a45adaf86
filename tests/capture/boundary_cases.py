"""Compiled regions fed with AsyncCollectiveTensors: what the region is, and what eager code does around it.

A case is `case(compile_) -> tensors`: it calls `compile_` on the region it wants compiled (eager: the identity), runs,
and returns outputs and gradients. Everything is seeded, so that eager and compiled runs compare tensor by tensor.
"""

import functools

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

CASES = {}


def case(function):
    CASES[function.__name__] = function
    return function


def leaf(rows=4, cols=6, k=0):
    """A leaf that differs on every rank and requires grad."""
    x = torch.arange(rows * cols, dtype=torch.float32).reshape(rows, cols) * 0.1 + dist.get_rank() + k
    return x.requires_grad_()


def mesh():
    return DeviceMesh("cpu", list(range(dist.get_world_size())))


def gathered(x):
    """An async tensor with history, as TP code gets it: the result of an asynchronous DTensor redistribution."""
    local = DTensor.from_local(x, mesh(), [Shard(0)], run_check=False)
    return is_async(local.redistribute(mesh(), [Replicate()], async_op=True).to_local())


class _Collect(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return funcol.all_gather_tensor(x, 0, dist.group.WORLD)

    @staticmethod
    def backward(ctx, grad):
        return funcol.reduce_scatter_tensor(grad, "sum", 0, dist.group.WORLD)


def collected(x):
    """An async tensor with history that may be written in place, which autograd forbids of DTensor's views."""
    return is_async(_Collect.apply(x))


def sharded(x):
    """A DTensor with history whose local tensor is async."""
    result = DTensor.from_local(x, mesh(), [Shard(0)], run_check=False).redistribute(
        mesh(), [Replicate()], async_op=True
    )
    is_async(result._local_tensor)
    return result


def reduced(x):
    """An async tensor without history."""
    return is_async(funcol.all_reduce(x.detach(), "sum", dist.group.WORLD))


def is_async(x):
    assert type(x) is funcol.AsyncCollectiveTensor
    return x


def weight(rows=6, cols=6):
    generator = torch.Generator().manual_seed(1)
    return torch.randn(rows, cols, generator=generator).requires_grad_()


def backward(outputs, *leaves):
    """Outputs and gradients, after a backward whose incoming gradient is not constant."""
    outputs = outputs if isinstance(outputs, (list, tuple)) else [outputs]
    with_history = [o for o in outputs if o.requires_grad]
    sum((o * torch.linspace(1, 2, o.numel()).reshape(o.shape)).sum() for o in with_history).backward()
    return [o.detach() * 1 for o in outputs] + [x.grad for x in leaves]


@case
def block(compile_):
    x, w = leaf(), weight()
    return backward(compile_(lambda o, w: (o @ w).relu())(gathered(x), w), x, w)


@case
def residual_in_eager(compile_):
    x, w = leaf(), weight()
    o = gathered(x)
    return backward(o + compile_(lambda o, w: o @ w)(o, w), x, w)


@case
def without_history(compile_):
    return [compile_(lambda o: o * 2 + 1)(reduced(leaf()))]


@case
def only_viewed(compile_):
    x = leaf()
    return backward(compile_(lambda o: o.view(-1))(gathered(x)) * 3, x)


@case
def only_viewed_without_history(compile_):
    return [compile_(lambda o: o.view(-1))(reduced(leaf())) * 3]


@case
def view_and_value(compile_):
    x, w = leaf(), weight()
    view, value = compile_(lambda o, w: (o.t(), o @ w))(gathered(x), w)
    return backward([view * 2, value], x, w)


@case
def returned_as_it_is(compile_):
    x = leaf()
    same, value = compile_(lambda o: (o, o.sin()))(gathered(x))
    return backward([same * 2, value], x)


@case
def saved_for_backward(compile_):
    x = leaf()
    return backward(compile_(lambda o: (o * o).sin() * o)(gathered(x)), x)


@case
def several(compile_):
    x, y = leaf(), leaf(k=3)
    region = compile_(lambda a, b, c: (a * b + c, a - b))
    return backward(region(gathered(x), gathered(y), reduced(y).repeat(dist.get_world_size(), 1)), x, y)


@case
def the_same_twice(compile_):
    x = leaf()
    o = gathered(x)
    return backward(compile_(lambda a, b: a * b + b)(o, o), x)


@case
def with_a_view_of_itself(compile_):
    x = leaf()
    o = gathered(x)
    return backward(compile_(lambda a, b: a.sin().view(-1) * b)(o, o.view(-1)), x)


@case
def mutated(compile_):
    x = leaf()
    o = collected(x)

    def region(o):
        o.mul_(2)
        return o.sin()

    y = compile_(region)(o)
    return backward([y, o * o], x)


@case
def mutated_without_history(compile_):
    o = reduced(leaf())

    def region(o):
        o.mul_(2)
        return o + 1

    return [compile_(region)(o), o * 1]


@case
def mutated_under_no_grad(compile_):
    x = leaf()
    o = collected(x)

    def region(o):
        with torch.no_grad():
            o.mul_(2)
        return o.sin()

    return backward([compile_(region)(o), o * 1], x)


@case
def mutated_through_a_view(compile_):
    o = reduced(leaf())

    def region(o):
        o.view(-1)[2:5].add_(1)
        return o * 3

    return [compile_(region)(o), o * 1]


@case
def mutated_with_a_view_of_itself(compile_):
    o = reduced(leaf())

    def region(a, b):
        a.add_(1)
        return b * 3

    return [compile_(region)(o, o.view(-1)), o * 1]


@case
def not_contiguous(compile_):
    x, y = leaf(), leaf(k=2)
    region = compile_(lambda a, b: (a.sin() + 1, b * b))
    return backward(region(gathered(x).t(), gathered(y)[1:, 2:5]), x, y)


@case
def dynamic(compile_):
    region, found = compile_(lambda o, w: (o @ w).relu() + o.shape[0], dynamic=True), []
    for rows in (4, 6, 9):
        x, w = leaf(rows), weight()
        found += backward(region(gathered(x), w), x, w)
    return found


@case
def automatically_dynamic(compile_):
    region, found = compile_(lambda o: (o * o.shape[0]).view(-1)), []
    for rows in (4, 6, 9):
        x = leaf(rows)
        found += backward(region(gathered(x)) * 1, x)
    return found


@case
def nested_containers(compile_):
    x, y = leaf(), leaf(k=3)
    region = compile_(lambda d: {"sum": d["a"][0] + d["b"]["c"], "product": (d["a"][0] * d["b"]["c"],)})
    result = region({"a": [gathered(x)], "b": {"c": gathered(y)}})
    return backward([result["sum"], result["product"][0]], x, y)


class Holder(torch.nn.Module):
    """A module that reads an async tensor from an attribute."""

    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(6, 6)
        with torch.no_grad():
            self.linear.weight.copy_(weight())
            self.linear.bias.zero_()

    def forward(self, y):
        return self.linear(self.held) + y


@case
def module_attribute(compile_):
    x, module = leaf(), Holder()
    region, found = compile_(module), []
    for _ in range(2):
        x.grad = module.linear.weight.grad = None
        module.held = gathered(x)
        found += backward(region(torch.ones(1, 6)), x, module.linear.weight)
    return found


@case
def checkpoint_inside(compile_):
    x, w = leaf(), weight()

    def region(o, w):
        return checkpoint(lambda o, w: (o @ w).sin(), o, w, use_reentrant=False) * 2

    return backward(compile_(region)(gathered(x), w), x, w)


@case
def checkpoint_outside(compile_):
    x, w = leaf(), weight()
    region = compile_(lambda o, w: (o @ w).sin())
    return backward(checkpoint(region, gathered(x), w, use_reentrant=False), x, w)


@case
def checkpoint_outside_reentrant(compile_):
    x, w = leaf(), weight()
    region = compile_(lambda o, w: (o @ w).sin())
    return backward(checkpoint(region, gathered(x), w, use_reentrant=True), x, w)


@case
def checkpoint_selective(compile_):
    x, w = leaf(), weight()
    keep_products = functools.partial(create_selective_checkpoint_contexts, [torch.ops.aten.mm.default])

    def region(o, w):
        return checkpoint(lambda o, w: (o @ w).sin().sin(), o, w, use_reentrant=False, context_fn=keep_products)

    return backward(compile_(region)(gathered(x), w), x, w)


@case
def checkpoint_around_eager_and_compiled(compile_):
    """The recomputed forward issues its collective anew, and hands the region another async tensor."""
    x, w = leaf(), weight()
    region = compile_(lambda o, w: (o @ w).sin())

    def block(x, w):
        o = gathered(x)
        return o + region(o, w)

    return backward(checkpoint(block, x, w, use_reentrant=False), x, w)


@case
def no_grad(compile_):
    o = gathered(leaf())
    with torch.no_grad():
        return [compile_(lambda o: (o * 2, o.view(-1)))(o)[i] * 1 for i in (0, 1)]


@case
def inference_mode(compile_):
    with torch.inference_mode():
        return [compile_(lambda o: o * 2 + 1)(reduced(leaf()))]


@case
def grad_enabled_inside_no_grad(compile_):
    x = leaf()
    o = gathered(x)

    def region(o):
        with torch.enable_grad():
            return (o * o).sum()

    with torch.no_grad():
        y = compile_(region)(o)
    y.backward()
    return [y.detach(), x.grad]


@case
def detached_inside(compile_):
    x, w = leaf(), weight()
    return backward(compile_(lambda o, w: (o.detach() @ w, o.detach()))(gathered(x), w), w)


@case
def gradient_partly_unused(compile_):
    x, y = leaf(), leaf(k=1)
    used, unused = compile_(lambda a, b: (a * 2, b * 3))(gathered(x), gathered(y))
    used.sum().backward()
    # AOTAutograd gives zeros where eager leaves no gradient, for plain tensors too.
    return [used.detach(), unused.detach(), x.grad, torch.zeros_like(y) if y.grad is None else y.grad]


@case
def several_steps(compile_):
    region, found = compile_(lambda o, w: torch.nn.functional.gelu(o @ w)), []
    for step in range(3):
        x, w = leaf(k=step), weight()
        o = gathered(x)
        found += backward(o + region(o, w), x, w)
    return found


@case
def work_before_the_first_read(compile_):
    x, w = leaf(), weight()

    def region(o, w):
        flat = o.view(-1)
        v = (w @ w).relu()
        return (flat.view(-1, 6) + 1) @ v

    return backward(compile_(region)(gathered(x), w), x, w)


@case
def waited_by_hand(compile_):
    def region(o):
        if isinstance(o, funcol.AsyncCollectiveTensor):
            o = o.wait()
        return o * 2

    return [compile_(region)(reduced(leaf()))]


@case
def integers(compile_):
    x = torch.arange(4) + dist.get_rank()
    table = weight(64, 3)
    o = is_async(funcol.all_gather_tensor(x, 0, dist.group.WORLD))
    return backward(compile_(lambda o, t: torch.nn.functional.embedding(o, t))(o, table), table)


@case
def two_regions(compile_):
    x, w = leaf(), weight()
    first, second = compile_(lambda o, w: o @ w), compile_(lambda o: o.sin() * 2)
    o = gathered(x)
    return backward(first(o, w) + second(o), x, w)


@case
def sometimes_ready(compile_):
    region, found = compile_(lambda o: o * o), []
    for step in range(4):
        x = leaf(k=step)
        o = gathered(x)
        found += backward(region(o * 1 if step % 2 == 0 else o), x)
    return found
