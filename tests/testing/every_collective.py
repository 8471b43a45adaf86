"""Every collective that a process group offers, on two ranks, with what it must give."""

import torch
import torch.distributed as dist


def mine(*shape):
    return torch.arange(1, 1 + torch.Size(shape).numel(), dtype=torch.float32).reshape(shape) * (dist.get_rank() + 1)


def every_collective():
    """(name, outputs, issue, expected): `issue()` returns the Work, which fills `outputs`."""
    rank, x = dist.get_rank(), mine(4, 2)
    base = mine(4, 2) / (rank + 1)
    gathered, parts = torch.empty(8, 2), [torch.empty(4, 2) for _ in range(2)]
    half, swapped, uneven = torch.empty(2, 2), torch.empty(4, 2), torch.empty(3 if rank == 0 else 5, 2)
    pieces, received = [torch.empty(2, 2) for _ in range(2)], torch.empty(4, 2)
    listed, handed, several, across = torch.empty(2, 2), torch.empty(2, 2), [x.clone(), x * 2], x.clone().t()
    collected = [] if rank else [torch.empty(4, 2) for _ in range(2)]
    summed, largest, mean, root, reduced = (x.clone() for _ in range(5))
    both = torch.cat([base, base * 2])
    return [
        ("all_reduce", [summed], lambda: dist.all_reduce(summed, async_op=True), [base * 3]),
        ("max", [largest], lambda: dist.all_reduce(largest, dist.ReduceOp.MAX, async_op=True), [base * 2]),
        ("avg", [mean], lambda: dist.all_reduce(mean, dist.ReduceOp.AVG, async_op=True), [base * 1.5]),
        ("all_gather_into_tensor", [gathered], lambda: dist.all_gather_into_tensor(gathered, x, async_op=True), [both]),
        ("all_gather", parts, lambda: dist.all_gather(parts, x, async_op=True), [base, base * 2]),
        (
            "reduce_scatter_tensor",
            [half],
            lambda: dist.reduce_scatter_tensor(half, x, async_op=True),
            [base.chunk(2)[rank] * 3],
        ),
        (
            "reduce_scatter",
            [listed],
            lambda: dist.reduce_scatter(listed, list(x.chunk(2)), async_op=True),
            [base.chunk(2)[rank] * 3],
        ),
        (
            "all_to_all_single",
            [swapped],
            lambda: dist.all_to_all_single(swapped, x, async_op=True),
            [torch.cat([base.chunk(2)[rank], base.chunk(2)[rank] * 2])],
        ),
        (
            "all_to_all",
            pieces,
            lambda: dist.all_to_all(pieces, list(x.chunk(2)), async_op=True),
            [base.chunk(2)[rank], base.chunk(2)[rank] * 2],
        ),
        (
            "all_to_all_single, uneven",
            [uneven],
            lambda: dist.all_to_all_single(
                uneven,
                mine(4, 2),
                [1, 2] if rank == 0 else [3, 2],
                [1, 3] if rank == 0 else [2, 2],
                async_op=True,
            ),
            [torch.cat([base[:1], base[:2] * 2]) if rank == 0 else torch.cat([base[1:], base[2:] * 2])],
        ),
        ("broadcast", [root] if rank else [], lambda: dist.broadcast(root, 0, async_op=True), [base] if rank else []),
        (
            "reduce",
            [] if rank else [reduced],
            lambda: dist.reduce(reduced, 0, async_op=True),
            [] if rank else [base * 3],
        ),
        (
            "all_reduce_coalesced",
            several,
            lambda: dist.group.WORLD.allreduce_coalesced(several),
            [base * 3, base * 6],
        ),
        (
            "gather",
            collected,
            lambda: dist.gather(x, collected or None, 0, async_op=True),
            [] if rank else [base, base * 2],
        ),
        (
            "scatter",
            [handed],
            lambda: dist.scatter(handed, None if rank else list(x.chunk(2)), 0, async_op=True),
            [base.chunk(2)[rank]],
        ),
        ("not contiguous", [across], lambda: dist.all_reduce(across, async_op=True), [base.t() * 3]),
        ("recv", [received], lambda: _exchange(x, received), [base * (2 - rank)]),
        ("barrier", [], lambda: dist.barrier(async_op=True), []),
    ]


def _exchange(x, received):
    other = 1 - dist.get_rank()
    ops = [dist.P2POp(dist.isend, x, other), dist.P2POp(dist.irecv, received, other)]
    return _All(dist.batch_isend_irecv(ops))


class _All:
    """Several works as one."""

    def __init__(self, works):
        self.works = works

    def wait(self):
        for work in self.works:
            work.wait()

    def is_completed(self):
        return all(work.is_completed() for work in self.works)
