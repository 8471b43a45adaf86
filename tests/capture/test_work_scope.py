"""Where capture ends: other backends, graph breaks, handles that leave the region or are dropped."""

import subprocess
import sys
import textwrap
from contextlib import contextmanager
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

import tp_compile_pass
from tp_compile_pass.testing import RankPool, deferred

pytestmark = pytest.mark.matrix


@pytest.fixture(scope="module")
def ranks():
    with RankPool(2, "deferred", setup=deferred.register, timeout=400) as pool:
        yield pool


def mine():
    return torch.arange(6.0).reshape(2, 3) * (dist.get_rank() + 1) + 1


def total():
    return (torch.arange(6.0) * 3 + 2).reshape(2, 3)


def compile_(fn, fullgraph=True, **options):
    options = {"tp.inner": "aot_eager", **options}
    return torch.compile(fn, backend="tp_inductor", fullgraph=fullgraph, options=options)


def breaks():
    return sum(torch._dynamo.utils.counters["graph_break"].values())


def returned_and_waited_in_eager():
    def fn(x):
        t = x * 1
        return t, dist.all_reduce(t, async_op=True)

    t, work = compile_(fn)(mine())
    assert isinstance(work, dist.Work)
    work.wait()
    work.wait()
    torch.testing.assert_close(t, total())
    assert deferred.pending() == []


def kept_in_an_object_from_outside():
    class State:
        work = None

    state, x = State(), mine()

    def start(x):
        state.work = dist.all_reduce(x, async_op=True)
        return x.shape[0]

    def finish(x):
        state.work.wait()
        return x + 1

    compile_(start)(x)
    out = compile_(finish)(x)
    torch.testing.assert_close(out, total() + 1)
    torch.testing.assert_close(x, total())


def across_a_graph_break():
    def fn(x):
        t = x * 1
        work = dist.all_reduce(t, async_op=True)
        torch._dynamo.graph_break()
        if isinstance(work, dist.Work):
            work.wait()
        return t + 1

    torch._dynamo.utils.counters.clear()
    torch.testing.assert_close(compile_(fn, fullgraph=False)(mine()), total() + 1)
    assert breaks() == 1 and deferred.pending() == []


def dropped():
    """Eager completes a collective that nobody waits for; so must the graph, or other ranks hang."""

    def fn(x, y):
        t = x * 1
        dist.all_reduce(t, async_op=True)
        work = dist.all_gather_into_tensor(y, x, async_op=True)
        del work
        return t

    x, y = mine(), torch.zeros(4, 3)
    torch.testing.assert_close(compile_(fn)(x, y), total())
    torch.testing.assert_close(y[2 * dist.get_rank() :][:2], x)
    assert deferred.pending() == []


def read_by_dead_code_only():
    """With the functional op, waiting is the user's: torch drops the collective, and the other ranks hang."""
    c10d = torch.ops._c10d_functional

    def value(x, named):
        summed = c10d.all_reduce(x, "sum", named)
        summed + 1
        return x * 2, c10d.wait_tensor(c10d.all_gather_into_tensor(x, 2, named)) + 1

    def written_to(x, named):
        c10d.all_reduce(x, "sum", named).add_(1)
        return x * 2

    def into_a_dead_buffer(x, named):
        torch.empty_like(x).view(3, 2).copy_(c10d.all_reduce(x, "sum", named).view(3, 2))
        return x * 2

    name = dist.group.WORLD.group_name
    for fn in (value, written_to, into_a_dead_buffer):
        for x in (mine(), mine().requires_grad_()):
            (graph,) = tp_compile_pass.explain(fn, options={"tp.inner": "aot_eager"})(x, name).graphs
            kept = [place.what for place in graph.rewrites]
            assert kept == ["unused _c10d_functional.all_reduce"], (fn, kept)
            with issued() as kinds:
                out = compile_(fn)(x, name)
            assert kinds.count("all_reduce") == 1, (fn, kinds)
            torch.testing.assert_close(out[0] if fn is value else out, x * 2)
    assert deferred.pending() == []


@contextmanager
def issued():
    """The kinds of the collectives that this rank really issues."""
    cls, kinds = type(dist.group.WORLD), []
    original = cls._issue

    def record(self, collective):
        kinds.append(collective.kind)
        return original(self, collective)

    cls._issue = record
    try:
        yield kinds
    finally:
        cls._issue = original


def conditional():
    def fn(x, late):
        t = x * 1
        work = dist.all_reduce(t, async_op=True) if late else None
        y = x + 1
        if work is not None:
            work.wait()
        return t, y

    compiled = compile_(fn)
    torch.testing.assert_close(compiled(mine(), True)[0], total())
    torch.testing.assert_close(compiled(mine(), False)[0], mine())


def outside_of_the_group():
    group = dist.new_group([0], backend="deferred")

    def fn(x):
        t = x * 1
        work = dist.all_reduce(t, group=group, async_op=True)
        if work is not None:
            work.wait()
        return t, work is None

    t, none = compile_(fn)(mine())
    assert none == (dist.get_rank() == 1)
    torch.testing.assert_close(t, mine())


def wrong_arguments_raise():
    def shape(x):
        dist.all_gather_into_tensor(x.new_empty(5, 3), x, async_op=True).wait()
        return x

    def dtype(x):
        dist.all_gather_into_tensor(torch.empty(4, 3, dtype=torch.int64), x, async_op=True).wait()
        return x

    for fn in (shape, dtype):
        for run in (fn, compile_(fn, fullgraph=False), compile_(fn)):
            with pytest.raises((RuntimeError, ValueError, TypeError)):
                run(mine())
    assert deferred.pending() == []


def not_known_while_tracing():
    def fn(x, flag):
        t = x * 1
        work = dist.all_reduce(t, async_op=bool(flag.item()))
        if work is not None:
            work.wait()
        return t

    compiled = compile_(fn, fullgraph=False)
    torch.testing.assert_close(compiled(mine(), torch.tensor(1)), total())


def eager_work_waited_inside():
    def fn(x, work):
        work.wait()
        return x + 1

    x = mine()
    work = dist.all_reduce(x, async_op=True)
    torch.testing.assert_close(compile_(fn, fullgraph=False)(x, work), total() + 1)
    assert deferred.pending() == []


def a_timeout_made_inside():
    def fn(x):
        timeout, t = timedelta(0, 5, milliseconds=2), x * 1
        work = dist.all_reduce(t, async_op=True)
        torch._dynamo.graph_break()
        work.wait(timeout)
        dist.all_reduce(t, async_op=True).wait(timedelta(seconds=5))
        return t / 2, timeout, [timedelta(days=1)] * 2

    t, *timeouts = compile_(fn, fullgraph=False)(mine())
    torch.testing.assert_close(t, total())
    assert timeouts == [timedelta(seconds=5.002), [timedelta(1), timedelta(1)]]


def functional_names_stay_bound_to_torch():
    assert dist.all_reduce.__module__ == "torch.distributed.distributed_c10d"


@pytest.mark.parametrize(
    "check",
    [
        returned_and_waited_in_eager,
        kept_in_an_object_from_outside,
        across_a_graph_break,
        dropped,
        read_by_dead_code_only,
        conditional,
        outside_of_the_group,
        wrong_arguments_raise,
        not_known_while_tracing,
        eager_work_waited_inside,
        a_timeout_made_inside,
        functional_names_stay_bound_to_torch,
    ],
)
def test_on_the_deferred_group(ranks, check):
    ranks.run(check)


SCOPE = """
    import sys, torch, torch.distributed as dist
    import torch._dynamo
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)

    def fn(x):
        t = x * 2
        work = dist.all_reduce(t, async_op=True)
        y = x.sin()
        work.wait()
        dist.all_reduce(y)
        z = y * 1
        dist.broadcast(z, 0)
        return t + y + z

    def seen_by_another_backend():
        torch._dynamo.reset()
        torch._dynamo.utils.counters.clear()
        graphs = []

        def backend(gm, inputs):
            graphs.append([(n.op, n.name, str(n.target)) for n in gm.graph.nodes])
            return gm.forward

        torch.compile(fn, backend=backend)(torch.ones(2))
        return graphs, sum(torch._dynamo.utils.counters["graph_break"].values())

    def ours():
        torch._dynamo.reset()
        torch.compile(fn, backend="tp_inductor", fullgraph=True, options={"tp.inner": "aot_eager"})(torch.ones(2))

    before = seen_by_another_backend() if "first" in sys.argv else None
    ours()
    after = seen_by_another_backend()
    import json
    print("RESULT", json.dumps(before), json.dumps(after), sep="|")
"""


def other_backend(*argv):
    run = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", textwrap.dedent(SCOPE), *argv],
        capture_output=True,
        text=True,
        timeout=300,
    )
    line = next((line for line in run.stdout.splitlines() if line.startswith("RESULT")), run.stderr)
    return line.split("|")[1:]


def test_other_backends_see_what_they_saw_in_both_orders():
    before, after = other_backend("first")
    assert before == after and '"output"' in before
    _, ours_came_first = other_backend()
    assert ours_came_first == before
