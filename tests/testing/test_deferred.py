"""The deferred process group: nothing before `wait()`, the right thing after it, and what goes wrong is told."""

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
from every_collective import every_collective, mine

from tp_compile_pass.testing import RankPool, deferred

pytestmark = pytest.mark.matrix


@pytest.fixture(scope="module")
def ranks():
    with RankPool(2, "deferred", setup=deferred.register) as pool:
        yield pool


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
