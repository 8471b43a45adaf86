"""Large sums on the simulated link go through shared memory: the right values, the same bits on every rank, however
late and in whatever order they are waited for, and no more memory than is in flight."""

from functools import partial

import pytest
import torch
import torch.distributed as dist

from tp_compile_pass.testing import RankPool, link
from tp_compile_pass.testing.shared_memory import OPEN, SMALLEST

pytestmark = pytest.mark.matrix
RANKS, ELEMENTS = 3, SMALLEST // 4


@pytest.fixture(scope="module")
def ranks():
    with RankPool(RANKS, "simlink", setup=partial(link.register, latency=0.0, bandwidth=1e15)) as pool:
        yield pool


def of_rank(rank, seed=0):
    return torch.randn(ELEMENTS, generator=torch.Generator().manual_seed(seed * RANKS + rank))


def mine(seed=0):
    return of_rank(dist.get_rank(), seed)


def total(seed=0):
    """In the order of the ranks, to the bit."""
    return of_rank(0, seed) + of_rank(1, seed) + of_rank(2, seed)


def buffers():
    """How many this rank made."""
    sums = dist.group.WORLD._sums
    return len(sums._lent) + sum(map(len, sums._free.values()))


def every_sum():
    x, half = mine(), mine().to(torch.bfloat16)
    average, scattered = mine(), torch.empty(ELEMENTS // 4)
    dist.all_reduce(x)
    assert torch.equal(x, total())
    dist.all_reduce(average, dist.ReduceOp.AVG)
    assert torch.equal(average, total() / RANKS)
    large = half.repeat(2)
    dist.all_reduce(large)
    first, second, third = (of_rank(rank).to(torch.bfloat16) for rank in range(RANKS))
    assert torch.equal(large, (first + second + third).repeat(2))
    dist.reduce_scatter_tensor(scattered, mine()[: 3 * (ELEMENTS // 4)].clone())
    torch.testing.assert_close(scattered, total()[: 3 * (ELEMENTS // 4)].chunk(RANKS)[dist.get_rank()])


def inference_mode_leaves_no_trace():
    """Sums started inside and waited for outside, and the reverse; their buffers serve any sum after them."""
    with torch.inference_mode():
        inside, other = mine().repeat(8), mine()
        dist.all_reduce(inside)
        work = dist.all_reduce(other, async_op=True)
    work.wait()
    assert torch.equal(inside, total().repeat(8)) and torch.equal(other, total())
    outside = mine()
    work = dist.all_reduce(outside, async_op=True)
    with torch.inference_mode():
        work.wait()
    assert torch.equal(outside, total())
    for _ in range(4):
        again = mine().repeat(8).requires_grad_()
        summed = again * 1
        dist.all_reduce(summed.detach())
        assert torch.equal(summed, total().repeat(8))


def without_waiting():
    """`is_completed` says that the tensor holds the sum; who does not ask gets it when many more are started."""
    x = mine()
    work = dist.all_reduce(x, async_op=True)
    while not work.is_completed():
        pass
    assert torch.equal(x, total())
    before, dropped = buffers(), [mine(seed) for seed in range(5 * OPEN)]
    works = []
    for seed, tensor in enumerate(dropped):
        works.append(dist.all_reduce(tensor, async_op=True))
        dist.barrier()
        if seed > OPEN:
            assert torch.equal(dropped[seed - OPEN - 1], total(seed - OPEN - 1))
    assert buffers() <= before + 2 * OPEN + 5
    for work in works:
        work.wait()


def sizes_share_buffers():
    before = buffers()
    for rows in range(1, 9):
        x = torch.ones(ELEMENTS + 1000 * rows)
        dist.all_reduce(x)
        assert (x == RANKS).all()
    assert buffers() <= before + 3


def gloo_keeps_the_rest():
    made = buffers()
    small, whole, largest = mine()[:-1].clone(), torch.ones(ELEMENTS, dtype=torch.int64), mine()
    dist.all_reduce(small)
    dist.all_reduce(whole)
    dist.all_reduce(largest, dist.ReduceOp.MAX)
    torch.testing.assert_close(small, total()[:-1])
    assert (whole == RANKS).all()
    assert torch.equal(largest, torch.stack([of_rank(rank) for rank in range(RANKS)]).amax(0))
    assert buffers() == made


def late_and_in_any_order():
    """Each rank waits in an order of its own, and starts more before the first ones are read."""
    tensors = [mine(seed) for seed in range(9)]
    works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors[:6]]
    order = [(place + 2 * dist.get_rank()) % 6 for place in range(6)]
    for place in order[:3]:
        works[place].wait()
        assert torch.equal(tensors[place], total(place))
    works += [dist.all_reduce(tensor, async_op=True) for tensor in tensors[6:]]
    for place in [*order[3:], 6, 7, 8]:
        works[place].wait()
        works[place].wait()
    for seed, tensor in enumerate(tensors):
        assert torch.equal(tensor, total(seed))


def buffers_are_used_again():
    before = buffers()
    for seed in range(20):
        x = mine(seed)
        dist.all_reduce(x)
        assert torch.equal(x, total(seed))
    assert buffers() <= before + 3


def in_a_sub_group():
    group = dist.new_group([0, 2], backend="simlink")
    if dist.get_rank() != 1:
        x = mine()
        dist.all_reduce(x, group=group)
        assert torch.equal(x, of_rank(0) + of_rank(2))


@pytest.mark.parametrize(
    "check",
    [
        every_sum,
        inference_mode_leaves_no_trace,
        without_waiting,
        sizes_share_buffers,
        gloo_keeps_the_rest,
        late_and_in_any_order,
        buffers_are_used_again,
        in_a_sub_group,
    ],
)
def test_sums(ranks, check):
    ranks.run(check)
