"""Random tensor-parallel programs: as data, so that they travel to ranks, shrink, and can be written down as a test.

A program is a list of steps over a growing list of (4, 4) tensors. Every result of a collective that is still in flight
is waited for before a step uses it, so each program is right by construction: what eager computes is what it means.
"""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
import torch.nn.functional as F
from hypothesis import strategies as st
from torch.fx import Graph, GraphModule
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils.checkpoint import checkpoint

from tp_compile_pass.testing import RankPool

N = 4
c10d = torch.ops._c10d_functional


@dataclass(frozen=True)
class Program:
    """`steps` are tuples: a name, then numbers that pick values and variants (modulo what there is)."""

    steps: tuple[tuple, ...]
    training: bool = False
    seed: int = 0
    dynamic: bool = False


# ----------------------------------------------------------------------------------------------------- collectives
def all_reduced(x):
    x = x.clone()
    dist.all_reduce(x)
    return x


def all_reduced_with_a_handle(x):
    x = x.clone()
    work = dist.all_reduce(x, async_op=True)
    work.wait()
    return x


class ReduceForward(torch.autograd.Function):
    """All-reduce in forward, identity in backward."""

    @staticmethod
    def forward(ctx, x):
        return all_reduced(x)

    @staticmethod
    def backward(ctx, grad):
        return grad


class ReduceForwardAsync(ReduceForward):
    @staticmethod
    def forward(ctx, x):
        return all_reduced_with_a_handle(x)


class ReduceBackward(torch.autograd.Function):
    """Identity in forward, all-reduce in backward."""

    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad):
        return all_reduced(grad)


class ReduceBackwardAsync(ReduceBackward):
    @staticmethod
    def backward(ctx, grad):
        return all_reduced_with_a_handle(grad)


REDUCTIONS = (ReduceForward, ReduceBackward, ReduceForwardAsync, ReduceBackwardAsync)


class InFlight:
    """A result that is not waited for yet, and how to get it."""

    def __init__(self, finish):
        self._finish, self._value = finish, None

    def get(self):
        if self._value is None:
            self._value = self._finish()
        return self._value


def start(kind, x, group, ranks):
    """Issues a functional collective that is not waited for; returns its raw result and what makes (4, 4) of it."""
    x = x.contiguous()
    if kind == 0:
        return c10d.all_reduce(x, "sum", group), lambda r: r * 0.5
    if kind == 1:
        return c10d.all_reduce(x, "max", group), lambda r: r
    if kind == 2:
        return c10d.all_gather_into_tensor(x, ranks, group), lambda r: r.view(ranks, N, N).mean(0)
    if kind == 3:
        wide = x.repeat(ranks, 1)
        return c10d.reduce_scatter_tensor(wide, "sum", ranks, group), lambda r: r * 0.5
    if kind == 4:
        wide = x.repeat(ranks, 1)
        return c10d.all_to_all_single(wide, [N] * ranks, [N] * ranks, group), lambda r: r.view(ranks, N, N).sum(0)
    return c10d.broadcast(x, 0, group), lambda r: r


def lazy(kind, x, group):
    """The same through torch.distributed._functional_collectives, whose results wait by themselves in eager."""
    if kind in (0, 1, 5):
        return funcol.all_reduce(x, ("sum", "max")[kind % 2], group)
    if kind == 2:
        return funcol.all_gather_tensor(x, 0, group)[:N]
    return funcol.reduce_scatter_tensor(x.repeat(dist.get_world_size(group), 1), "sum", 0, group)


def handle(kind, x, group):
    """The same through torch.distributed with async_op=True."""
    ranks, sent = dist.get_world_size(group), x.clone(memory_format=torch.contiguous_format)
    wide = sent.repeat(ranks, 1)
    if kind == 0:
        out, works = sent, [dist.all_reduce(sent, group=group, async_op=True)]
    elif kind == 1:
        out = torch.empty(N * ranks, N)
        works = [dist.all_gather_into_tensor(out, sent, group=group, async_op=True)]
    elif kind == 2:
        out = torch.empty(N, N)
        works = [dist.reduce_scatter_tensor(out, wide, group=group, async_op=True)]
    elif kind == 3:
        out = torch.empty_like(wide)
        works = [dist.all_to_all_single(out, wide, group=group, async_op=True)]
    elif kind == 4:
        out, works = sent, [dist.broadcast(sent, dist.get_global_rank(group, 0), group=group, async_op=True)]
    elif kind == 5:  # a part of a buffer
        out = wide
        works = [dist.all_reduce(wide[:N], group=group, async_op=True)]
    elif kind == 6:  # two in flight, waited for in reverse
        out, other = sent, x * 0.5
        works = [dist.all_reduce(t, op=dist.ReduceOp.MAX, group=group, async_op=True) for t in (other, sent)]
    else:
        out, pieces = wide, list(wide.split(N))
        with dist._coalescing_manager(group=group, async_ops=True) as manager:
            for piece in pieces:
                dist.all_reduce(piece, group=group)
        works = [manager]

    def finish():
        for work in works[::-1]:
            work.wait()
        return out[:N] * 0.5

    return InFlight(finish)


# ----------------------------------------------------------------------------------------------------- the meaning
def run(program, x, weights, group_name="0", ranks=2):
    """What `program` computes: the sum of its last values. `group_name` names a group of `ranks` ranks."""
    values = [x, x * 0.5]
    pending = []

    def value(i):
        found = values[i % len(values)]
        return found.get() if isinstance(found, InFlight) else found

    for step in program.steps:
        _step(step, program, values, pending, value, weights, group_name, ranks)
        values[:] = values[:2] + values[2:][-6:]
    total = value(0)
    for i in range(1, len(values)):
        total = total + value(i)
    for later in pending:
        later.get()
    return total


def _step(step, program, values, pending, value, weights, group, ranks):
    name, a, b = step
    if name == "pointwise":
        values.append((torch.sin, torch.relu, torch.tanh, lambda v: v * 0.5 + 1)[b % 4](value(a)))
    elif name == "combine":
        values.append(value(a) * 0.5 + value(b) * 0.25)
    elif name == "matmul":
        values.append(torch.tanh(value(a) @ weights[b % len(weights)]))
    elif name == "norm":
        values.append(F.layer_norm(value(a), (N,)))
    elif name == "view":
        v = value(a)
        values.append(
            (v.t(), v.reshape(-1).view(N, N), v[:, :2].repeat(1, 2), v.unsqueeze(0).expand(2, N, N)[1])[b % 4]
        )
    elif name == "in_place":
        v = value(a).clone(memory_format=torch.contiguous_format)  # of a transposed tensor there is no such view
        alias = v.view(-1)
        (alias.add_, alias.mul_)[b % 2](0.5)
        values.append(v)
    elif name == "input":
        values[0] = values[0].add_(0.25) if not program.training else values[0]
    elif name == "native":
        out, finish = start(b % 6, value(a), group, ranks)
        later = InFlight(lambda: finish(c10d.wait_tensor(out)))
        values.append(later)
        pending.append(later)
    elif name == "ignored":  # the wait's result is not used
        out, finish = start(b % 6, value(a), group, ranks)
        c10d.wait_tensor(out)
        values.append(finish(out))
    elif name == "twice":  # the same of the same tensor, and waited for once more than need be
        v = value(a).contiguous()
        (first, finish), (second, _) = start(b % 6, v, group, ranks), start(b % 6, v, group, ranks)
        again = c10d.wait_tensor(c10d.wait_tensor(second))
        values.append(finish(c10d.wait_tensor(first)) * 0.5 + finish(again) * 0.25)
    elif name == "lazy":
        values.append(lazy(b % 6, value(a), dist.group.WORLD))
    elif name == "handle":
        later = handle(b, value(a), dist.group.WORLD)
        values.append(later)
        pending.append(later)
    elif name == "synchronous":
        v = value(a).clone(memory_format=torch.contiguous_format)
        dist.all_reduce(v)
        values.append(v * 0.5)
    elif name == "checkpoint":
        body = Program((("matmul", 0, b), ("reduce", 2, b), ("pointwise", 3, a)), program.training)
        values.append(checkpoint(lambda v: run(body, v, weights, group, ranks), value(a), use_reentrant=False))
    elif name == "reduce":
        values.append(REDUCTIONS[b % 4].apply(value(a)) * 0.5)


LOCAL = ("pointwise", "combine", "matmul", "norm", "view", "in_place")
#: What can be traced without a process group: the functional ops alone.
NATIVE = ("native", "ignored")
INFERENCE = (*NATIVE, "twice", "lazy", "handle", "synchronous", "checkpoint", "input")
TRAINING = ("reduce", "checkpoint")


@st.composite
def programs(draw, names=None, training=None):
    """Random programs; `names` restricts their steps."""
    train = draw(st.booleans()) if training is None else training
    chosen = names or LOCAL + (TRAINING if train else INFERENCE)
    number = st.integers(0, 7)
    step = st.tuples(st.sampled_from(chosen), number, number)
    steps = draw(st.lists(step, min_size=1, max_size=10))
    return Program(tuple(steps), train, draw(st.integers(0, 99)), draw(st.booleans()))


def traced(program):
    """The graph of a program of `NATIVE` and local steps, as it is after AOTAutograd: functional, on fake tensors."""
    x, weights = inputs(program, 0)
    functional = torch.func.functionalize(lambda x, *w: run(program, x, w), remove="mutations_and_views")
    return make_fx(functional, tracing_mode="fake")(x, *weights)


def copied(gm):
    """A copy of a traced graph; its nodes share their metadata."""
    graph = Graph()
    graph.output(graph.graph_copy(gm.graph, {}))
    return GraphModule(gm, graph)


def inputs(program, rank):
    generator = torch.Generator().manual_seed(program.seed * 8 + rank)
    x = torch.randn(N, N, generator=generator)
    weights = [torch.randn(N, N, generator=generator) for _ in range(2)]
    return x, weights


def check(program, options):
    """Runs `program` in eager and compiled, and compares results and gradients. Every rank calls it."""

    def call(function):
        x, weights = inputs(program, dist.get_rank())
        leaves = [t.requires_grad_(program.training) for t in (x, *weights)]
        # An input that is changed in place must not be a leaf of autograd's.
        result = function(leaves[0] if program.training else leaves[0].clone(), tuple(leaves[1:]))
        out = result * 1
        if program.training:
            out.sum().backward()
        return [out.detach(), *(t.grad if t.grad is not None else torch.zeros(N, N) for t in leaves)]

    def meaning(x, weights):
        return run(program, x, weights, dist.group.WORLD.group_name, dist.get_world_size())

    want = call(meaning)
    torch._dynamo.reset()
    got = call(torch.compile(meaning, backend="tp_inductor", dynamic=program.dynamic or None, options=options))
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4)
    return True


def pool(ranks=2, backend="deferred"):
    """Ranks of the group that delivers NaN until a wait, where this package has it; else of gloo."""
    if backend == "gloo" or importlib.util.find_spec("tp_compile_pass.testing.deferred") is None:
        return RankPool(ranks)
    deferred = importlib.import_module("tp_compile_pass.testing.deferred")
    return RankPool(ranks, deferred.NAME, setup=deferred.register)
