"""Rows on `AsyncCollectiveTensor`, the lazy tensor that functional collectives and DTensor return in eager code."""

import torch
import torch.distributed._functional_collectives as funcol
from torch import nn
from torch.distributed._functional_collectives import AsyncCollectiveTensor
from torch.distributed.tensor import Replicate
from torch.utils._pytree import tree_map_only

from tp_compile_pass.demo.catalogue.rows import LAZY, call_site, gathered, sharded


@call_site(LAZY, "if isinstance(x, AsyncCollectiveTensor): return x.wait()")
def isinstance_wait(mesh):
    def fn(x):
        out = gathered(x, mesh)
        if isinstance(out, AsyncCollectiveTensor):
            return out.wait()
        return out

    return fn


@call_site(LAZY, "x = x.wait(); x + 1")
def isinstance_wait_then_compute(mesh):
    def fn(x):
        out = gathered(x * 2, mesh)
        if isinstance(out, AsyncCollectiveTensor):
            out = out.wait()
        return out + 1

    return fn


@call_site(LAZY, "x + 1, then backward", backward=True)
def lazy_backward(mesh):
    def fn(x):
        return gathered(x * 2, mesh) + 1

    return fn


@call_site(LAZY, "x.wait() of a tensor that requires grad")
def wait_with_grad(mesh):
    weight = torch.ones(3, requires_grad=True)

    def fn(x):
        out = gathered(x * weight, mesh)
        if isinstance(out, AsyncCollectiveTensor):
            out = out.wait()
        return out + 1

    return fn


@call_site(LAZY, "x.trigger_wait()")
def trigger_wait(mesh):
    def fn(x):
        out = gathered(x, mesh)
        if isinstance(out, AsyncCollectiveTensor):
            out = out.trigger_wait()
        return out + 1

    return fn


@call_site(LAZY, "if hasattr(x, 'wait'): x.wait()")
def hasattr_wait(mesh):
    def fn(x):
        out = gathered(x, mesh)
        if hasattr(out, "wait"):
            out = out.wait()
        return out + 1

    return fn


@call_site(LAZY, "getattr(x, 'wait', None)")
def getattr_wait(mesh):
    def fn(x):
        out = gathered(x, mesh)
        wait = getattr(out, "wait", None)
        if wait is not None:
            out = wait()
        return out + 1

    return fn


@call_site(LAZY, "if type(x) is AsyncCollectiveTensor: x.wait()")
def type_is(mesh):
    def fn(x):
        out = gathered(x, mesh)
        if type(out) is AsyncCollectiveTensor:
            out = out.wait()
        return out + 1

    return fn


@call_site(LAZY, "if not x.completed: x.wait()")
def completed(mesh):
    def fn(x):
        out = gathered(x, mesh)
        if isinstance(out, AsyncCollectiveTensor) and not out.completed:
            out = out.wait()
        return out + 1

    return fn


@call_site(LAZY, "wait_tensor(x.elem)")
def elem(mesh):
    def fn(x):
        out = gathered(x, mesh)
        if isinstance(out, AsyncCollectiveTensor):
            funcol.wait_tensor(out.elem)
            out = out.elem
        return out + 1

    return fn


@call_site(LAZY, "dtensor._local_tensor.wait()")
def local_tensor(mesh):
    def fn(x):
        out = sharded(x, mesh).redistribute(mesh, [Replicate()], async_op=True)._local_tensor
        if isinstance(out, AsyncCollectiveTensor):
            out = out.wait()
        return out + 1

    return fn


@call_site(LAZY, "x.view(-1).wait()")
def wait_on_a_view(mesh):
    def fn(x):
        out = gathered(x, mesh).view(-1)
        if isinstance(out, AsyncCollectiveTensor):
            out = out.wait()
        return out + 1

    return fn


@call_site(LAZY, "tree_map_only(AsyncCollectiveTensor, lambda x: x.wait(), …)")
def tree_map_wait(mesh):
    def fn(x):
        outs = tree_map_only(AsyncCollectiveTensor, lambda t: t.wait(), [gathered(x, mesh), gathered(x + 1, mesh)])
        return outs[0] + outs[1]

    return fn


@call_site(LAZY, "wait_tensor(x.wait())")
def wait_twice(mesh):
    def fn(x):
        out = gathered(x, mesh)
        if isinstance(out, AsyncCollectiveTensor):
            out = out.wait()
        return funcol.wait_tensor(out) + 1

    return fn


@call_site(LAZY, "a forward hook that calls x.wait()")
def forward_hook(mesh):
    torch.manual_seed(0)
    layer = nn.Linear(3, 3)

    def hook(module, inputs, out):
        out = gathered(out, mesh)
        if isinstance(out, AsyncCollectiveTensor):
            return out.wait()
        return out

    layer.register_forward_hook(hook)
    return layer


@call_site(LAZY, "return x  # nobody waits")
def returned_unwaited(mesh):
    def fn(x):
        return gathered(x, mesh)

    return fn


@call_site(LAZY, "x.tolist()")
def tolist(mesh):
    def fn(x):
        out = gathered(x, mesh)
        return out + len(out.tolist())

    return fn


@call_site(LAZY, "wait_tensor(all_reduce(x, 'sum', group))")
def functional_wait(mesh):
    group = mesh.get_group()

    def fn(x):
        return funcol.wait_tensor(funcol.all_reduce(x, "sum", group)) + 1

    return fn


@call_site(LAZY, "x = funcol.all_reduce(…); x.wait()")
def functional_isinstance_wait(mesh):
    group = mesh.get_group()

    def fn(x):
        out = funcol.all_reduce(x, "sum", group)
        if isinstance(out, AsyncCollectiveTensor):
            out = out.wait()
        return out + 1

    return fn


@call_site(LAZY, "torch.ops._c10d_functional.wait_tensor(…)")
def native_op(mesh):
    name = mesh.get_group().group_name

    def fn(x):
        out = torch.ops._c10d_functional.all_reduce(x, "sum", name)
        return torch.ops._c10d_functional.wait_tensor(out) + 1

    return fn


@call_site(LAZY, "vmap(wait_tensor)")
def vmap_wait(mesh):
    def fn(x):
        return torch.func.vmap(lambda row: funcol.wait_tensor(row) + 1)(x)

    return fn


@call_site(LAZY, "jvp of funcol.all_reduce")
def jvp(mesh):
    group = mesh.get_group()

    def fn(x):
        def reduced(t):
            return funcol.all_reduce(t * t, "sum", group).sum()

        return torch.func.jvp(reduced, (x,), (torch.ones_like(x),))[1]

    return fn
