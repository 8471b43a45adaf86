"""Rows on the c10d API: `dist.*(async_op=True)`, `Work`, `Future`, coalescing, point to point."""

import torch
import torch.distributed as dist

from tp_compile_pass.demo.catalogue.rows import WORK, call_site


@call_site(WORK, "dist.all_reduce(t)  # no async_op")
def all_reduce_sync(mesh):
    group = mesh.get_group()

    def fn(x):
        t = x * 2
        dist.all_reduce(t, group=group)
        return t + 1

    return fn


@call_site(WORK, "w = dist.all_reduce(t, async_op=True); …; w.wait()")
def all_reduce_work(mesh):
    group = mesh.get_group()

    def fn(x):
        t = x * 2
        work = dist.all_reduce(t, group=group, async_op=True)
        y = x + 1
        work.wait()
        return t + y

    return fn


@call_site(WORK, "dist.all_gather_into_tensor(out, x, async_op=True)")
def all_gather_work(mesh):
    group, size = mesh.get_group(), mesh.size()

    def fn(x):
        out = torch.empty(x.shape[0] * size, x.shape[1])
        work = dist.all_gather_into_tensor(out, x, group=group, async_op=True)
        work.wait()
        return out + 1

    return fn


@call_site(WORK, "dist.reduce_scatter_tensor(out, x, async_op=True)")
def reduce_scatter_work(mesh):
    group, size = mesh.get_group(), mesh.size()

    def fn(x):
        out = torch.empty(x.shape[0] // size, x.shape[1])
        work = dist.reduce_scatter_tensor(out, x, group=group, async_op=True)
        work.wait()
        return out + 1

    return fn


@call_site(WORK, "dist.all_to_all_single(out, x, async_op=True)")
def all_to_all_work(mesh):
    group = mesh.get_group()

    def fn(x):
        out = torch.empty_like(x)
        work = dist.all_to_all_single(out, x, group=group, async_op=True)
        work.wait()
        return out + 1

    return fn


@call_site(WORK, "dist.broadcast(t, 0, async_op=True)")
def broadcast_work(mesh):
    group = mesh.get_group()

    def fn(x):
        t = x * 2
        work = dist.broadcast(t, 0, group=group, async_op=True)
        work.wait()
        return t + 1

    return fn


@call_site(WORK, "if w is not None: w.wait()")
def work_or_none(mesh):
    group = mesh.get_group()

    def fn(x):
        t = x * 2
        work = dist.all_reduce(t, group=group, async_op=True)
        if work is not None:
            work.wait()
        return t + 1

    return fn


@call_site(WORK, "for w in works: w.wait()")
def list_of_works(mesh):
    group = mesh.get_group()

    def fn(x):
        tensors = [x * 2, x * 3]
        works = [dist.all_reduce(t, group=group, async_op=True) for t in tensors]
        for work in works:
            work.wait()
        return tensors[0] + tensors[1]

    return fn


@call_site(WORK, "w.get_future().wait()")
def future(mesh):
    group = mesh.get_group()

    def fn(x):
        t = x * 2
        work = dist.all_reduce(t, group=group, async_op=True)
        work.get_future().wait()
        return t + 1

    return fn


@call_site(WORK, "with dist._coalescing_manager(async_ops=True) as cm: …")
def coalescing_manager(mesh):
    group = mesh.get_group()

    def fn(x):
        a, b = x * 2, x * 3
        with dist._coalescing_manager(group=group, async_ops=True) as manager:
            dist.all_reduce(a, group=group)
            dist.all_reduce(b, group=group)
        manager.wait()
        return a + b

    return fn


@call_site(WORK, "for w in dist.batch_isend_irecv(ops): w.wait()")
def batch_isend_irecv(mesh):
    group, peer = mesh.get_group(), 1 - mesh.get_local_rank()

    def fn(x):
        received = torch.empty_like(x)
        ops = [
            dist.P2POp(dist.isend, x.contiguous(), peer, group=group),
            dist.P2POp(dist.irecv, received, peer, group=group),
        ]
        for work in dist.batch_isend_irecv(ops):
            work.wait()
        return received + x

    return fn


class _Reduce(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, group):
        x = x.clone()
        dist.all_reduce(x, group=group)
        return x

    @staticmethod
    def backward(ctx, grad):
        return grad, None


@call_site(WORK, "autograd.Function: dist.all_reduce in forward", backward=True)
def megatron_reduce(mesh):
    group = mesh.get_group()

    def fn(x):
        return _Reduce.apply(x, group) + 1

    return fn


class _LinearWithAsyncGrad(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, group):
        ctx.save_for_backward(x, weight)
        ctx.group = group
        return x @ weight.t()

    @staticmethod
    def backward(ctx, grad):
        x, weight = ctx.saved_tensors
        grad_x = grad @ weight
        work = dist.all_reduce(grad_x, group=ctx.group, async_op=True)
        grad_weight = grad.t() @ x
        work.wait()
        return grad_x, grad_weight, None


@call_site(WORK, "autograd.Function: async all_reduce in backward, w.wait()", backward=True)
def megatron_async_backward(mesh):
    group = mesh.get_group()
    torch.manual_seed(0)
    weight = torch.randn(4, 3, requires_grad=True)

    def fn(x):
        return _LinearWithAsyncGrad.apply(x, weight, group)

    return fn
