"""Several functional all_gathers in flight on one gloo group: neither a crash nor a wrong value."""

import pytest
import torch
import torch.distributed as dist
from torch.distributed import _functional_collectives as funcol

from tp_compile_pass import compat_gloo
from tp_compile_pass.testing import RankPool, deferred

pytestmark = pytest.mark.matrix
c10d = torch.ops._c10d_functional

#: Without our kernels, memory was corrupted within 3,000 rounds, in six runs of six on torch 2.13.0.
ROUNDS = 3000


@pytest.fixture(scope="module")
def ranks():
    with RankPool(2, timeout=400) as pool:
        yield pool


def four_apart(x):
    gathered = [c10d.all_gather_into_tensor(x * i, 2, "0") for i in range(1, 5)]
    return [c10d.wait_tensor(y) for y in gathered]


def two_coalesced(x):
    gathered = [c10d.all_gather_into_tensor_coalesced([x * i, x[:2] * i], 2, "0") for i in range(1, 3)]
    return [c10d.wait_tensor(y) for pair in gathered for y in pair]


def wrong_rounds(fn, rounds):
    # In the order of the program, which has the gathers in flight together. Scheduled, they would hide nothing.
    compiled = torch.compile(fn, backend="tp_inductor", fullgraph=True, options={"tp.inner": "aot_eager"})
    base, wrong = torch.arange(24.0).reshape(4, 6), 0
    sizes = ((4, 1), (4, 2), (4, 3), (4, 4)) if fn is four_apart else ((4, 1), (2, 1), (4, 2), (2, 2))
    for i in range(rounds):
        got = compiled(base * (dist.get_rank() + 1) + i)
        want = [torch.cat([base[:rows] + i, base[:rows] * 2 + i]) * factor for rows, factor in sizes]
        wrong += any(not torch.equal(a, b) for a, b in zip(got, want, strict=True))
    return wrong


@pytest.mark.parametrize("fn", [four_apart, two_coalesced], ids=lambda fn: fn.__name__)
def test_many_rounds_of_gathers_in_flight(ranks, fn):
    assert ranks.run(wrong_rounds, fn, ROUNDS) == [0, 0]


def eager_gathers():
    """Shapes, dtypes, the gradient's absence or presence: as without our kernels."""
    results = []
    for turn in ("torch's", "ours"):
        if turn == "ours":
            torch.compile(lambda x: x + 1, backend="tp_inductor")(torch.ones(1))
        rank = dist.get_rank()
        x = torch.arange(6.0).reshape(2, 3) + rank
        with torch.inference_mode():
            inference = funcol.all_gather_tensor(x, 0, dist.group.WORLD) + 0
        half = funcol.all_gather_tensor(x.to(torch.bfloat16), 1, dist.group.WORLD) + 0
        leaf = x.clone().requires_grad_()
        y = funcol.all_gather_tensor_autograd(leaf * 2, 0, dist.group.WORLD)
        (y * (rank + 1)).sum().backward()
        results.append((inference, half, y.detach() + 0, leaf.grad))
    return results


@pytest.mark.skipif(not compat_gloo.CORRUPTS_MEMORY, reason="torch's own kernels stay")
def test_eager_code_gets_the_same(ranks):
    for before, after in ranks.run(eager_gathers):
        torch.testing.assert_close(after, before)


def ways():
    """The method by which compiled gathers reach a group that is written in Python."""
    taken = []
    method = deferred.DeferredProcessGroup.allgather_into_tensor_coalesced

    def note(self, *args):
        taken.append(self.group_name)
        return method(self, *args)

    deferred.DeferredProcessGroup.allgather_into_tensor_coalesced = note
    deferred.DeferredProcessGroup.all_gather_single_coalesced = note
    compiled = torch.compile(four_apart, backend="tp_inductor", fullgraph=True)
    assert compiled(torch.ones(2, 2))[3].tolist() == [[4.0, 4.0]] * 4
    assert deferred.pending() == []
    return taken


def test_other_groups_are_used_as_before():
    with RankPool(2, "deferred", setup=deferred.register, timeout=400) as pool:
        assert pool.run(ways) == [["0"] * 4] * 2
