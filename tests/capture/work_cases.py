"""Functions that use c10d's asynchronous collectives, each in a form that user code takes."""

from datetime import timedelta

import torch
import torch.distributed as dist

CASES = {}


def case(fn):
    """Registers `fn`, which builds a function of one (4, 6) float tensor. It runs on two ranks."""
    CASES[fn.__name__] = fn
    return fn


@case
def all_reduce():
    group = dist.group.WORLD

    def fn(x):
        t = x * 2
        work = dist.all_reduce(t, group=group, async_op=True)
        y = x.sin()
        work.wait()
        return t + y

    return fn


@case
def arguments_by_position():
    group = dist.group.WORLD

    def fn(x):
        t = x * 2
        dist.all_reduce(t, dist.ReduceOp.MAX, group, True).wait()
        return t

    return fn


@case
def every_reduce_op():
    ops = [dist.ReduceOp.SUM, dist.ReduceOp.PRODUCT, dist.ReduceOp.MIN, dist.ReduceOp.MAX]
    bits = [dist.ReduceOp.BAND, dist.ReduceOp.BOR, dist.ReduceOp.BXOR]

    def fn(x):
        floats, ints = [x * 2 for _ in ops], [x.int() for _ in bits]
        for t, op in zip(floats + ints, ops + bits):  # noqa: B905 (Dynamo of torch 2.5 has no strict)
            dist.all_reduce(t, op=op, async_op=True).wait()
        return floats, ints

    return fn


@case
def a_list_of_works():
    def fn(x):
        ts = [x * 2, x * 3]
        works = [dist.all_reduce(t, async_op=True) for t in ts]
        for work in works:
            work.wait()
        return ts[0] + ts[1]

    return fn


@case
def a_dict_of_works_in_reverse():
    def fn(x):
        ts = {"a": x * 2, "b": x * 3}
        works = {k: dist.all_reduce(t, async_op=True) for k, t in ts.items()}
        for k in reversed(list(works)):
            works[k].wait()
        return ts["a"] - ts["b"]

    return fn


@case
def an_attribute_and_another_function():
    class State:
        pass

    def finish(state):
        state.work.wait()
        state.work = None

    def fn(x):
        state, t = State(), x * 2
        state.work = dist.all_reduce(t, async_op=True)
        y = x.cos()
        finish(state)
        return t * y

    return fn


@case
def a_closure():
    def fn(x):
        t = x * 2
        work = dist.all_reduce(t, async_op=True)

        def finish():
            work.wait()
            return t + 1

        return finish()

    return fn


@case
def if_not_none_and_twice():
    def fn(x):
        t = x * 2
        work = dist.all_reduce(t, async_op=True)
        if work is not None:
            work.wait()
            t.add_(1)
            work.wait()
        return t

    return fn


@case
def isinstance_of_work():
    def fn(x):
        t = x * 2
        work = dist.all_reduce(t, async_op=True)
        if isinstance(work, dist.Work):
            work.wait()
        return t

    return fn


@case
def isinstance_of_work_in_a_tuple():
    def fn(x):
        out = x.new_empty(8, 6)
        work = dist.all_gather_into_tensor(out, x * 2, async_op=True)
        if isinstance(work, (list, dist.distributed_c10d.Work)):
            work.wait()
        return out

    return fn


@case
def futures():
    def fn(x):
        a, b, c = x * 2, x * 3, x * 4
        dist.all_reduce(a, async_op=True).get_future().wait()
        tripled = dist.all_reduce(b, async_op=True).get_future().then(lambda f: f.value()[0] * 3).wait()
        future = dist.all_reduce(c, async_op=True).get_future()
        return a, b, tripled, future.wait()[0] + 1

    return fn


@case
def the_other_methods():
    timeout = timedelta(seconds=30)

    def fn(x):
        a, b = x * 2, x * 3
        first, second = dist.all_reduce(a, async_op=True), dist.all_reduce(b, async_op=True)
        first.wait(timeout)
        second.synchronize()  # on gloo this alone does not wait
        second.wait(timeout=timedelta(seconds=x.shape[0]))
        done = first.is_completed(), second.is_success()
        return a, b, done

    return fn


@case
def the_input_is_read_while_in_flight():
    def fn(x):
        t, out = x * 2, x.new_empty(8, 6)
        work = dist.all_gather_into_tensor(out, t, async_op=True)
        y = t.sin() @ t.t()
        work.wait()
        return out.sum() + y

    return fn


@case
def a_graph_input_in_place():
    def fn(x):
        work = dist.all_reduce(x, async_op=True)
        work.wait()
        return x + 1

    return fn


@case
def a_view_of_a_graph_input():
    def fn(x):
        row = x[1:3]
        work = dist.all_reduce(row, async_op=True)
        y = x.shape[0] * 2
        work.wait()
        return x.sum() + y

    return fn


@case
def a_view_read_after_the_wait():
    def fn(x):
        t = x * 2
        view = t.view(-1)[3:9]
        work = dist.all_reduce(t, async_op=True)
        work.wait()
        return view.sin(), t

    return fn


@case
def reduced_through_a_view():
    def fn(x):
        t = x * 2
        work = dist.all_reduce(t.view(-1), async_op=True)
        work.wait()
        return t + 1

    return fn


@case
def into_slices_of_one_buffer():
    def fn(x):
        out = x.new_zeros(2, 8, 6)
        works = [dist.all_gather_into_tensor(out[i], x * (i + 1), async_op=True) for i in range(2)]
        for work in works:
            work.wait()
        return out * 2

    return fn


@case
def all_gather_into_stacked():
    def fn(x):
        out, synchronous = x.new_empty(2, 4, 6), x.new_empty(2, 4, 6)
        work = dist.all_gather_into_tensor(out, x * 2, async_op=True)
        dist.all_gather_into_tensor(synchronous, x * 3)
        work.wait()
        return out + 1, synchronous

    return fn


@case
def reduce_scatter_tensor():
    def fn(x):
        half, largest = x.new_empty(2, 6), x.new_empty(2, 6)
        works = [
            dist.reduce_scatter_tensor(half, x * 2, async_op=True),
            dist.reduce_scatter_tensor(largest, x * 3, op=dist.ReduceOp.MAX, async_op=True),
        ]
        for work in works:
            work.wait()
        return half, largest

    return fn


@case
def reduce_scatter_tensor_stacked():
    def fn(x):
        out = x.new_empty(6)
        work = dist.reduce_scatter_tensor(out, (x * 3)[:2].clone(), async_op=True)
        work.wait()
        return out

    return fn


@case
def all_to_all_single():
    rank = dist.get_rank()
    outs, ins = ([1, 2], [1, 3]) if rank == 0 else ([3, 2], [2, 2])

    def fn(x):
        even, uneven = torch.empty_like(x), x.new_empty(sum(outs), 6)
        works = [
            dist.all_to_all_single(even, x * 2, async_op=True),
            dist.all_to_all_single(uneven, x * 3, outs, ins, async_op=True),
        ]
        for work in works:
            work.wait()
        return even, uneven

    return fn


@case
def broadcast():
    def fn(x):
        t, u, v = x * 2, x * 3, x * 4
        dist.broadcast(t, 1, async_op=True).wait()
        work = dist.broadcast(u, src=0, async_op=True)
        dist.broadcast(v, 1)
        work.wait()
        return t, u, v

    return fn


@case
def reduce():
    rank = dist.get_rank()

    def fn(x):
        t = x * 2
        work = dist.reduce(t, 1, async_op=True)
        work.wait()
        return t if rank == 1 else x

    return fn


@case
def two_in_flight_on_two_groups():
    other = dist.new_group([0, 1])

    def fn(x):
        a, b, c = x * 2, x * 3, x.new_empty(8, 6)
        works = [
            dist.all_reduce(a, async_op=True),
            dist.all_reduce(b, group=other, async_op=True),
            dist.all_gather_into_tensor(c, x * 4, group=other, async_op=True),
        ]
        y = x.sin()
        for work in reversed(works):
            work.wait()
        return a + b + y, c

    return fn


@case
def a_group_of_one_rank_each():
    groups = [dist.new_group([0]), dist.new_group([1])]

    def fn(x):
        t = x * 2
        for group in groups:
            work = dist.all_reduce(t, group=group, async_op=True)
            if work is not None:
                work.wait()
        return t

    return fn


@case
def synchronous_as_before():
    group = dist.group.WORLD  # torch 2.5's own treatment of the synchronous all_gather asks for one

    def fn(x):
        t, out = x * 2, x.new_empty(8, 6)
        dist.all_reduce(t)
        dist.all_reduce(t, op=dist.ReduceOp.MAX, async_op=False)
        dist.all_gather_into_tensor(out, t, group=group)
        return t, out

    return fn


@case
def a_scalar():
    def fn(x):
        t, out = x.sum(), x.new_empty(2)
        works = [dist.all_gather_into_tensor(out, x.mean(), async_op=True), dist.all_reduce(t, async_op=True)]
        for work in works:
            work.wait()
        return t + out.max()

    return fn


@case
def passed_on_by_an_autograd_function():
    """Megatron's linear layer: the input's gradient is reduced while the weight's is computed."""

    class Linear(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, w):
            ctx.save_for_backward(x, w)
            return x @ w.t()

        @staticmethod
        def backward(ctx, grad):
            x, w = ctx.saved_tensors
            grad_x = grad @ w
            handle = dist.all_reduce(grad_x, async_op=True)
            grad_w = grad.t() @ x
            handle.wait()
            return grad_x, grad_w

    torch.manual_seed(0)
    w = torch.randn(5, 6, requires_grad=True)

    def fn(x):
        return Linear.apply(x, w).sin()

    return fn


@case
def seen_by_autograd_as_in_eager():
    """c10d is invisible to autograd: the gradient passes the reduced tensor as if nothing had happened."""

    def fn(x):
        t = x * 2
        work = dist.all_reduce(t, async_op=True)
        work.wait()
        return (t * 3).sum() * 1

    return fn


@case
def parameter_with_requires_grad():
    def fn(x):
        t = x.detach()
        work = dist.all_reduce(t, async_op=True)
        work.wait()
        return x.sin() + 1

    return fn


@case
def under_no_grad_and_checkpoint():
    from torch.utils.checkpoint import checkpoint

    def block(x):
        t = x.sin()
        with torch.no_grad():
            u = t * 2
            work = dist.all_reduce(u, async_op=True)
            work.wait()
        return t * u

    def fn(x):
        return checkpoint(block, x, use_reentrant=False)

    return fn
