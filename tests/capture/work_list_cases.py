"""More of `work_cases`: lists of tensors, barriers, send and receive, coalescing, torch.distributed.nn.functional."""

import torch
import torch.distributed as dist
from work_cases import case


@case
def all_gather_lists():
    group = dist.group.WORLD

    def fn(x):
        transposed = [x.new_empty(3, 4) for _ in range(2)]
        outs, again = [torch.empty_like(x) for _ in range(2)], list(x.new_empty(2, 4, 6))
        works = [dist.all_gather(outs, x * 2, async_op=True), dist.all_gather(again, tensor=x * 3, async_op=True)]
        dist.all_gather(transposed, x.t()[1:4], group=group)
        for work in works:
            work.wait()
        return outs, again, transposed

    return fn


@case
def all_gather_into_views_of_one_buffer():
    def fn(x):
        whole = x.new_zeros(8, 6)
        work = dist.all_gather(list(whole.split(4)), x * 2, async_op=True)
        work.wait()
        return whole + 1

    return fn


@case
def reduce_scatter_and_all_to_all_lists():
    def fn(x):
        out, pieces = x.new_empty(2, 6), [x.new_empty(2, 6) for _ in range(2)]
        works = [
            dist.reduce_scatter(out, list((x * 2).chunk(2)), async_op=True),
            dist.all_to_all(pieces, list((x * 3).chunk(2)), async_op=True),
        ]
        for work in works:
            work.wait()
        return out, pieces

    return fn


@case
def gather_and_scatter():
    rank = dist.get_rank()

    def fn(x):
        out, part = [torch.empty_like(x) for _ in range(2)], x.new_empty(2, 6)
        parts = [c.clone() for c in x.chunk(2)]
        works = [
            dist.gather(x * 2, out if rank == 1 else None, dst=1, async_op=True),
            dist.scatter(part, parts if rank == 0 else None, src=0, async_op=True),
        ]
        for work in works:
            work.wait()
        return (out if rank == 1 else []), part

    return fn


@case
def barriers():
    def fn(x):
        t = x * 2
        work = dist.barrier(async_op=True)
        dist.all_reduce(t, async_op=True).wait()
        work.wait()
        dist.barrier()
        return t

    return fn


@case
def p2p_batch():
    rank = dist.get_rank()

    def fn(x):
        received = torch.empty_like(x)
        ops = [dist.P2POp(dist.isend, x * 2, 1 - rank), dist.P2POp(dist.irecv, received, 1 - rank)]
        works = dist.batch_isend_irecv(ops)
        y = x.sin()
        for work in works:
            work.wait()
        return received + y

    return fn


@case
def p2p_single():
    rank = dist.get_rank()

    def fn(x):
        t, received = x * 2, torch.empty_like(x)
        if rank == 0:
            send = dist.isend(t, 1)
            receive = dist.irecv(received, 1)
        else:
            receive = dist.irecv(received, 0)
            send = dist.isend(t, dst=0)
        y = x.sin()
        receive.wait()
        send.wait()
        return received + y

    return fn


@case
def coalesced():
    def fn(x):
        a, b = x * 2, x * 3
        with dist._coalescing_manager(async_ops=True) as manager:
            dist.all_reduce(a)
            dist.all_reduce(b)
        y = x.sin()
        manager.wait()
        with dist._coalescing_manager():
            dist.all_reduce(y)
        return a + b + y

    return fn


@case
def nn_functional():
    """These autograd sees."""
    import torch.distributed.nn.functional as dist_nn

    def fn(x):
        parts = dist_nn.all_gather(x.sin())
        swapped = dist_nn.all_to_all_single(torch.empty_like(x), x.cos())
        root = dist_nn.broadcast(x * 3, 0) + dist_nn.reduce(x * 5, 1) * dist.get_rank()
        half = dist_nn.reduce_scatter(x.new_empty(2, 6), [c.contiguous() for c in x.exp().chunk(2)])
        return dist_nn.all_reduce(x * 2) * (dist.get_rank() + 1), parts[0] * 2 + parts[1], swapped * 3, root, half

    return fn


@case
def nn_functional_lists():
    import torch.distributed.nn.functional as dist_nn

    rank, sizes = dist.get_rank(), ([1, 2], [2, 2])

    def fn(x):
        gathered = dist_nn.gather(x.sin(), 1)
        scattered = dist_nn.scatter([x * 2, x.cos()], 0)
        outs = [x.new_empty(size, 6) for size in (sizes[0][rank], sizes[1][rank])]
        exchanged = dist_nn.all_to_all(outs, list(x.exp()[: sum(sizes[rank])].split(sizes[rank])))
        return gathered[0] + 2 * gathered[1], scattered * 3, *exchanged, [out.clone() for out in outs]

    return fn


@case
def nn_functional_into_a_buffer():
    import torch.distributed.nn.functional as dist_nn

    def fn(x):
        whole, half = x.new_empty(8, 6), x.new_empty(2, 6)
        with torch.no_grad():  # on gloo, torch's own has no gradient
            dist_nn._all_gather_base(whole, x)
        dist_nn.reduce_scatter(half, [c.contiguous() for c in x.exp().chunk(2)])
        return whole + 1, half * 2

    return fn
