"""The simulated link: the right values on real ranks, at the times that latency and bandwidth say, by a clock of the
tests' own: nothing here waits for real."""

import gc
from functools import partial

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
from every_collective import every_collective, mine
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

from tp_compile_pass.testing import RankPool, link

pytestmark = pytest.mark.matrix


class FakeClock:
    """Time that passes in `sleep` alone."""

    time = 0.0
    slept = 0

    @classmethod
    def now(cls):
        return cls.time

    @classmethod
    def sleep(cls, seconds):
        cls.time += seconds
        cls.slept += seconds > 0


LATENCY, BANDWIDTH = 1.0, 4.0  # a second, four bytes a second: times below are exact


@pytest.fixture(scope="module")
def ranks():
    setup = partial(link.register, latency=LATENCY, bandwidth=BANDWIDTH, clock=FakeClock)
    with RankPool(2, "simlink", setup=setup) as pool:
        yield pool


def every_collective_is_right():
    for name, outputs, issue, expected in every_collective():
        work = issue()
        assert not work.is_completed(), name
        work.wait()
        work.wait()
        assert work.is_completed(), name
        for out, value in zip(outputs, expected, strict=True):
            torch.testing.assert_close(out, value, msg=lambda text, name=name: f"{name}: {text}")


def seconds(issue):
    """How long a collective takes on a link that is free, in seconds of the fake clock."""
    start = FakeClock.time
    issue()
    return FakeClock.time - start


def each_takes_its_time():
    x, rank = torch.ones(8), dist.get_rank()  # 32 bytes
    halves = [torch.empty(4), torch.empty(4)]
    return {
        "all_reduce": seconds(lambda: dist.all_reduce(x)),
        "all_gather": seconds(lambda: dist.all_gather_into_tensor(torch.empty(16), x)),
        "reduce_scatter": seconds(lambda: dist.reduce_scatter_tensor(torch.empty(4), x)),
        "all_to_all": seconds(lambda: dist.all_to_all_single(torch.empty(8), x)),
        "broadcast": seconds(lambda: dist.broadcast(x, 0)),
        "reduce": seconds(lambda: dist.reduce(x, 0)),
        "gather": seconds(lambda: dist.gather(x, None if rank else [torch.empty(8), torch.empty(8)], 0)),
        "scatter": seconds(lambda: dist.scatter(halves[0], None if rank else halves, 0)),
        "send": seconds(lambda: dist.recv(x, 0) if rank else dist.send(x, 1)),
        "barrier": seconds(dist.barrier),
    }


def one_after_the_other_per_group():
    other = dist.new_group(backend="simlink")
    start, x = FakeClock.time, [torch.ones(8) for _ in range(3)]
    works = [dist.all_reduce(x[0], async_op=True), dist.all_reduce(x[1], async_op=True)]
    beside = dist.all_reduce(x[2], group=other, async_op=True)
    FakeClock.time += 5  # compute
    beside.wait()
    after_other = FakeClock.time - start
    works[1].wait()
    works[0].wait()
    assert all((y == 2).all() for y in x)
    return after_other, FakeClock.time - start, [(work.start - start, work.end - start) for work in (*works, beside)]


def what_passed_behind_compute_costs_nothing():
    x = torch.ones(8)
    work = dist.all_reduce(x, async_op=True)
    FakeClock.time += 20
    start, slept = FakeClock.time, FakeClock.slept
    work.wait()
    later = dist.all_reduce(x, async_op=True)  # the link was free meanwhile
    return FakeClock.time - start, FakeClock.slept - slept, later.start - start, later.wait()


def a_new_speed(latency, bandwidth):
    link.register(latency=latency, bandwidth=bandwidth, clock=FakeClock)
    try:
        return seconds(lambda: dist.all_reduce(torch.ones(8)))
    finally:
        link.register(latency=LATENCY, bandwidth=BANDWIDTH, clock=FakeClock)


def functional_collectives_wait_when_read():
    x = mine(2)
    out = funcol.all_reduce(x, "sum", dist.group.WORLD)
    gc.collect()  # only C++ holds the work now
    start = FakeClock.time
    value = (out * 1).tolist()
    gathered = funcol.all_gather_tensor(x, 0, dist.group.WORLD)
    return value, FakeClock.time > start, (gathered * 1).tolist()


def futures():
    x = mine(2)
    future = dist.all_reduce(x, async_op=True).get_future()
    assert not future.done()
    return future.then(lambda done: done.value()[0] * 2).wait().tolist(), future.done()


def dtensors_use_it():
    mesh = init_device_mesh("cpu", (2,))
    x = torch.arange(8.0).view(4, 2)
    sharded = distribute_tensor(x, mesh, [Shard(0)])
    product = sharded.t() @ sharded  # partial sums
    return product.redistribute(mesh, [Replicate()]).to_local().tolist(), dist.get_backend(mesh.get_group())


def compiled(backend):
    def fn(x):
        y = funcol.all_reduce(x * 2, "sum", dist.group.WORLD)
        return y + 1

    start = FakeClock.time
    return torch.compile(fn, backend=backend, fullgraph=True)(mine(2)).tolist(), FakeClock.time > start


def after_a_graph_break():
    def fn(x):
        y = x * 2
        work = dist.all_reduce(y, async_op=True)  # breaks the graph
        work.wait()
        return y + 1

    return torch.compile(fn, backend="eager")(mine(2)).tolist()


def test_every_collective_is_right(ranks):
    ranks.run(every_collective_is_right)


def test_times_are_those_of_the_ring(ranks):
    expected = {
        "all_reduce": 1 + 32 / 4,
        "all_gather": 1 + 32 / 4,
        "reduce_scatter": 1 + 16 / 4,
        "all_to_all": 1 + 16 / 4,
        "broadcast": 1 + 32 / 4,
        "reduce": 1 + 32 / 4,
        "gather": 1 + 32 / 4,
        "scatter": 1 + 16 / 4,
        "send": 1 + 32 / 4,
        "barrier": 1,
    }
    assert ranks.run(each_takes_its_time) == [expected] * 2


def test_a_group_has_one_queue_and_groups_have_their_own(ranks):
    assert ranks.run(one_after_the_other_per_group) == [(9, 18, [(0, 9), (9, 18), (0, 9)])] * 2


def test_communication_behind_compute_costs_nothing(ranks):
    assert ranks.run(what_passed_behind_compute_costs_nothing) == [(0, 0, 0, True)] * 2


def test_the_speed_can_change(ranks):
    assert ranks.run(a_new_speed, 0.0, 16.0) == [2.0] * 2


def test_functional_collectives_wait_when_read(ranks):
    answers = ranks.run(functional_collectives_wait_when_read)
    assert answers == [([3.0, 6.0], True, [1.0, 2.0, 2.0, 4.0])] * 2


def test_futures(ranks):
    assert ranks.run(futures) == [([6.0, 12.0], True)] * 2


def test_dtensors_use_it(ranks):
    x = torch.arange(8.0).view(4, 2)
    assert ranks.run(dtensors_use_it) == [((x.t() @ x).tolist(), "simlink")] * 2


@pytest.mark.parametrize("backend", ["inductor", "tp_inductor"])
def test_compiled_code_runs_on_it(ranks, backend):
    assert ranks.run(compiled, backend) == [([7.0, 13.0], True)] * 2


def test_dynamo_does_not_look_inside(ranks):
    assert ranks.run(after_a_graph_break) == [[7.0, 13.0]] * 2


def test_the_environment_sets_the_speed(monkeypatch):
    monkeypatch.setenv("SIMLINK_LATENCY_US", "2000000")
    monkeypatch.setenv("SIMLINK_GBPS", "128e-9")
    setup = partial(link.register, clock=FakeClock)
    with RankPool(2, "simlink", setup=setup) as pool:
        assert pool.run(each_takes_its_time)[0]["all_reduce"] == 2 + 32 / 16


@pytest.mark.parametrize("speed", [{"latency": -1}, {"bandwidth": 0}])
def test_a_link_needs_a_speed(speed):
    with pytest.raises(ValueError, match="a link needs latency >= 0 and bandwidth > 0"):
        link.register(**speed)


@pytest.mark.parametrize(
    ("kind", "reads", "writes", "expected"),
    [
        ("all_reduce", 100, 100, 150),
        ("reduce_scatter", 100, 25, 75),
        ("all_gather", 25, 100, 75),
        ("all_to_all", 100, 60, 75),
        ("gather", 25, 0, 75),
        ("gather", 25, 100, 75),
        ("scatter", 0, 25, 75),
        ("broadcast", 0, 100, 100),
        ("recv", 0, 100, 100),
        ("barrier", 0, 0, 0),
    ],
)
def test_ring_bytes_of_four_ranks(kind, reads, writes, expected):
    assert link.ring_bytes(kind, reads, writes, 4) == expected
