"""The deferred process group: nothing before `wait()`, the right thing after it, and what goes wrong is told."""

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol

from tp_compile_pass.testing import RankPool, deferred

pytestmark = pytest.mark.matrix


@pytest.fixture(scope="module")
def ranks():
    with RankPool(2, "deferred", setup=deferred.register) as pool:
        yield pool


def mine(*shape):
    return torch.arange(1, 1 + torch.Size(shape).numel(), dtype=torch.float32).reshape(shape) * (dist.get_rank() + 1)


def every_collective():
    """(name, outputs, issue, expected): `issue()` returns the Work; `outputs` are NaN until it is waited for."""
    rank, x = dist.get_rank(), mine(4, 2)
    base = mine(4, 2) / (rank + 1)
    gathered, parts = torch.empty(8, 2), [torch.empty(4, 2) for _ in range(2)]
    half, swapped, uneven = torch.empty(2, 2), torch.empty(4, 2), torch.empty(3 if rank == 0 else 5, 2)
    pieces, received = [torch.empty(2, 2) for _ in range(2)], torch.empty(4, 2)
    listed = torch.empty(2, 2)
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


def nothing_before_the_wait_and_the_result_after_it():
    for name, outputs, issue, expected in every_collective():
        work = issue()
        for out in outputs:
            assert out.isnan().all(), f"{name}: {out}"
        assert not work.is_completed() and deferred.pending(), name
        work.wait()
        work.wait()
        assert work.is_completed() and deferred.pending() == [], (name, deferred.pending())
        for out, value in zip(outputs, expected, strict=True):
            torch.testing.assert_close(out, value, msg=lambda text, name=name: f"{name}: {text}")


def synchronous_calls_work():
    x = mine(3)
    dist.all_reduce(x)
    objects = [None, None]
    dist.all_gather_object(objects, {"rank": dist.get_rank()})
    dist.barrier()
    return x.tolist(), objects, deferred.pending()


def functional_collectives_wait_too():
    x = mine(2)
    out = torch.ops._c10d_functional.all_reduce(x, "sum", dist.group.WORLD.group_name)
    assert out.isnan().all()
    assert torch.ops._c10d_functional.wait_tensor(out).tolist() == [3.0, 6.0]
    gathered = funcol.all_gather_tensor(x, 0, dist.group.WORLD)
    scattered = funcol.reduce_scatter_tensor(x, "sum", 0, dist.group.WORLD)
    return (gathered * 1).tolist(), (scattered * 1).tolist()


def waits_in_another_order_on_each_rank():
    other = dist.new_group(backend="deferred")
    x, y = mine(2), mine(2) * 10
    works = [dist.all_reduce(x, async_op=True), dist.all_reduce(y, group=other, async_op=True)]
    for work in works if dist.get_rank() else reversed(works):
        work.wait()
    assert dist.get_backend(other) == "deferred"
    return x.tolist(), y.tolist()


def never_waited():
    dist.all_reduce(mine(2, 3), async_op=True)
    waiting = deferred.pending()
    deferred.finish_pending()
    return waiting, deferred.pending()


def written_in_flight(which):
    x, out = mine(2), torch.empty(4)
    work = dist.all_gather_into_tensor(out, x, async_op=True)
    (x if which == "input" else out).fill_(7)
    try:
        work.wait()
    except deferred.DeferredError as error:
        return str(error)


def futures():
    x = mine(2)
    work = dist.all_reduce(x, async_op=True)
    doubled = work.get_future().then(lambda future: future.value()[0] * 2)
    assert x.isnan().all() and not doubled.done()
    return doubled.wait().tolist(), x.tolist(), work.get_future().wait() is not None


def integers_and_bools():
    x, flag = torch.arange(3), torch.tensor([dist.get_rank() == 0])
    work = dist.all_reduce(x, async_op=True)
    assert (x == torch.iinfo(torch.int64).min).all()
    work.wait()
    parts = [torch.zeros(1, dtype=torch.bool) for _ in range(2)]
    dist.all_gather(parts, flag)
    return x.tolist(), [part.item() for part in parts]


def a_compiled_function_runs_on_it():
    def fn(x):
        y = x * 2
        dist.all_reduce(y, group=dist.group.WORLD)
        return y + 1

    return torch.compile(fn, backend="aot_eager", fullgraph=True)(mine(2)).tolist()


def test_nothing_before_the_wait_and_the_result_after_it(ranks):
    ranks.run(nothing_before_the_wait_and_the_result_after_it)


def test_synchronous_calls_work(ranks):
    assert ranks.run(synchronous_calls_work) == [([3.0, 6.0, 9.0], [{"rank": 0}, {"rank": 1}], [])] * 2


def test_functional_collectives_wait_too(ranks):
    answers = ranks.run(functional_collectives_wait_too)
    assert answers == [([1.0, 2.0, 2.0, 4.0], [3.0]), ([1.0, 2.0, 2.0, 4.0], [6.0])]


def test_ranks_may_wait_in_different_orders(ranks):
    assert ranks.run(waits_in_another_order_on_each_rank) == [([3.0, 6.0], [30.0, 60.0])] * 2


def test_what_was_never_waited_for_is_listed(ranks):
    waiting, after = ranks.run(never_waited)[0]
    assert len(waiting) == 1 and waiting[0].startswith("all_reduce of (2, 3) float32 on group ")
    assert after == []


@pytest.mark.parametrize("which", ["input", "output"])
def test_a_write_in_flight_is_an_error(ranks, which):
    for message in ranks.run(written_in_flight, which):
        assert message.startswith(f"an {which} of all_gather of (2,) float32") and "written before its wait" in message


def test_futures_complete_in_wait(ranks):
    assert ranks.run(futures)[0] == ([6.0, 12.0], [3.0, 6.0], True)


def test_types_without_nan(ranks):
    assert ranks.run(integers_and_bools)[1] == ([0, 2, 4], [True, False])


def test_a_compiled_function_runs_on_it(ranks):
    assert ranks.run(a_compiled_function_runs_on_it) == [[7.0, 13.0]] * 2
