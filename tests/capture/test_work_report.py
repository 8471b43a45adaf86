"""The report lists each call of dist.* that was captured, and why one was left to torch, with the user's line."""

import inspect

import pytest
import torch
import torch.distributed as dist

from tp_compile_pass import compat
from tp_compile_pass.report.record import clear_reports, reports

pytestmark = pytest.mark.matrix


def captured(x):
    t, out = x * 1, x.new_empty(4, 3)
    works = [dist.all_reduce(t, async_op=True)]  # line: all_reduce
    works.append(dist.all_gather_into_tensor(out, x * 2, async_op=True))  # line: all_gather_into_tensor
    for work in works:
        work.wait()
    dist.broadcast(t, 0)  # line: broadcast
    dist.all_reduce(t, async_op=True)  # line: never waited for
    return t, out


def by_size(x):
    t = x * 1
    work = dist.all_reduce(t, async_op=x.shape[1] > 3)  # line: by size
    if work is not None:
        work.wait()
    return t


def not_constant(x):
    t = x * 1
    work = dist.all_reduce(t, async_op=(x > 0).sum().item() > 1)  # line: not constant
    if work is not None:
        work.wait()
    return t


def made_in_eager(x, work):
    y = x + 1
    work.wait()  # line: made in eager
    return y


def waits_before_any_graph(x, work):
    work.wait()  # line: before any graph
    return x + 1


def only_waits(work):
    work.wait()


def line(mark):
    source, _ = inspect.getsourcelines(inspect.getmodule(line))
    return next(i for i, text in enumerate(source, start=1) if text.endswith(f"# line: {mark}\n"))


def call_sites(fn, *args, **kwargs):
    """[(what, line, reason)] of the captured calls and of those left to torch, over all graphs of `fn`."""
    torch._dynamo.reset()
    clear_reports()
    torch.compile(fn, backend="tp_inductor", options={"tp.inner": "aot_eager"}, **kwargs)(*args)
    graphs = [graph for report in reports() for graph in report.graphs]
    results = [result for graph in graphs for result in graph.passes if result.name == "work_call_sites"]
    places = [place for result in results for place in result.applied + result.skipped]
    assert all(place.line.file == __file__ for place in places)
    return sorted({(place.what, place.line.line, place.reason) for place in places})


def lists_them():
    x = torch.arange(6.0).reshape(2, 3) + dist.get_rank()
    assert call_sites(captured, x, fullgraph=True) == sorted(
        [
            ("dist.all_reduce", line("all_reduce"), ""),
            ("dist.all_gather_into_tensor", line("all_gather_into_tensor"), ""),
            ("dist.broadcast", line("broadcast"), ""),
            ("dist.all_reduce", line("never waited for"), ""),
            (
                "a handle that is never waited for, completed at the graph's end",
                line("never waited for"),
                "",
            ),
        ]
    )
    for columns in (x, torch.cat([x, x], 1)):
        found = call_sites(by_size, columns, dynamic=True, fullgraph=True)
        assert found == [("dist.all_reduce", line("by size"), "")]
    with torch._dynamo.config.patch(capture_scalar_outputs=True):
        found = call_sites(not_constant, x)
    if compat.TORCH >= (2, 9):  # before, Dynamo makes no graph at all of a function that it must break there
        assert ("dist.all_reduce", line("not constant"), "async_op is not known while tracing") in found
    found = call_sites(made_in_eager, x, dist.all_reduce(x, async_op=True))
    assert [(what, at) for what, at, _ in found] == [("Work.wait", line("made in eager"))]
    assert "made outside" in found[0][2]
    found = call_sites(waits_before_any_graph, x, dist.all_reduce(x, async_op=True))
    assert [(what, at) for what, at, _ in found] == [("Work.wait", line("before any graph"))]
    call_sites(only_waits, dist.all_reduce(x, async_op=True))
    assert call_sites(torch.sin, x) == []  # what no graph came to take is not laid at another's door


def test_call_sites(ranks2):
    ranks2.run(lists_them)
