"""What a report says, how it serialises and prints, and where it is found."""

import json
import os
import subprocess
import sys

import pytest
import torch
import torch.distributed as dist
from torch.distributed._functional_collectives import AsyncCollectiveTensor, all_reduce
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard

import tp_compile_pass
from tp_compile_pass import compat
from tp_compile_pass.report import record
from tp_compile_pass.report.record import KEPT_GRAPHS, GraphReport
from tp_compile_pass.report.source import source_line

pytestmark = pytest.mark.matrix
AOT = {"options": {"tp.inner": "aot_eager"}}


def reduced(x, w):
    out = all_reduce(x @ w, "sum", dist.group.WORLD)
    return out.sin()


def explained():
    w = torch.ones(3, 3, requires_grad=True)
    x = torch.ones(2, 3, requires_grad=True)
    report = tp_compile_pass.explain(reduced, fullgraph=True)(x, w)
    again = tp_compile_pass.explain(torch.compile(reduced, backend="tp_inductor"))(x, w)
    return report.to_dict(), str(report), again.to_dict()


def test_explain_lists_each_collective_with_its_bytes_and_line(ranks2):
    for report, text, again in ranks2.run(explained):
        assert report["schema_version"] == record.SCHEMA_VERSION
        assert report["torch_version"] == torch.__version__
        (graph,) = report["graphs"]
        forward = next(c for c in graph["collectives"] if c["phase"] == "forward")
        assert (forward["kind"], forward["group"], forward["dtype"]) == ("all_reduce", "0", "float32")
        assert (forward["shape"], forward["bytes"]) == (["2", "3"], "24")
        assert forward["line"]["file"] == __file__
        assert forward["line"]["code"] == 'out = all_reduce(x @ w, "sum", dist.group.WORLD)'
        assert "all_reduce" in text and "nothing to rewrite" in text
        assert [len(r["graphs"]) for r in (report, again)] == [1, 1], "explain compiles a compiled function anew"


def waited_in_two_graphs(x, mesh):
    out = DTensor.from_local(x, mesh, [Shard(0)], run_check=False).redistribute(mesh, [Replicate()], async_op=True)
    out = out.to_local()
    if isinstance(out, AsyncCollectiveTensor):
        out = out.wait()
    torch._dynamo.graph_break()
    return out + 1


def explained_with_a_break():
    report = tp_compile_pass.explain(waited_in_two_graphs, **AOT)(torch.ones(2, 3), init_device_mesh("cpu", (2,)))
    return report.to_dict(), str(report)


def test_every_graph_and_every_rewrite_is_listed(ranks2):
    for report, text in ranks2.run(explained_with_a_break):
        assert len(report["graphs"]) == 2
        results = [r for g in report["graphs"] for r in g["passes"] if r["name"] == "wait_call_sites"]
        if compat.TORCH == (2, 5):
            ((site,),) = [r["applied"] for r in results]
            assert (site["what"], site["line"]["code"], site["line"]["file"]) == (
                ".wait()",
                "out = out.wait()",
                __file__,
            )
            assert "1 applied" in text
        else:
            assert results == []


def dynamic_bytes():
    torch.compile(reduced, backend="tp_inductor", dynamic=True, **AOT)(torch.ones(2, 3), torch.ones(3, 5))
    return [c.bytes for c in tp_compile_pass.reports()[-1].graphs[0].collectives]


def test_bytes_are_symbolic_with_dynamic_shapes(ranks2):
    for sizes in ranks2.run(dynamic_bytes):
        assert len(sizes) == 1
        assert sizes[0].startswith("4*s")


@pytest.fixture(autouse=True)
def fresh():
    record.clear_reports()
    yield
    torch._dynamo.reset()
    record.clear_reports()


def test_reports_lists_each_graph_and_keeps_a_bounded_number():
    compiled = torch.compile(lambda x: x + 1, backend="tp_inductor", dynamic=False, options={"tp.inner": "eager"})
    for n in range(2, 5):
        compiled(torch.ones(n))
    assert [len(r.graphs) for r in tp_compile_pass.reports()] == [1, 1, 1]
    ids = [r.graphs[0].compile_id for r in tp_compile_pass.reports()]
    assert len(set(ids)) == 3
    for _ in range(KEPT_GRAPHS + 5):
        record.add(GraphReport("", "eager", {}))
    assert len(tp_compile_pass.reports()) == KEPT_GRAPHS


def test_json_and_text_of_a_report():
    report = tp_compile_pass.explain(torch.sin, options={"tp.inner": "aot_eager"})(torch.ones(2))
    assert json.loads(report.to_json(indent=1)) == report.to_dict()
    assert report.to_dict()["graphs"][0]["inner"] == "aot_eager"
    assert str(tp_compile_pass.Report()).strip().endswith("no graph was compiled")


def test_the_report_is_an_artifact_of_torchs_structured_trace(tmp_path, monkeypatch):
    script = (
        "import torch\n"
        "torch.compile(lambda x: x + 1, backend='tp_inductor', options={'tp.inner': 'eager'})(torch.ones(2))\n"
    )
    subprocess.run(
        [sys.executable, "-c", script], env={**os.environ, "TORCH_TRACE": str(tmp_path)}, check=True, timeout=300
    )
    (log,) = tmp_path.iterdir()
    text = log.read_text()
    assert '"name": "tp_compile_pass_report"' in text
    assert '"schema_version": 1' in text


@pytest.mark.parametrize(
    ("trace", "line"),
    [
        ('File "a.py", line 3, in f\n    x.wait()\n', ("a.py", 3, "f", "x.wait()")),
        ('File "a.py", line 3, in f\n    g(x)\nFile "b.py", line 9, in g\n    x.wait()', ("b.py", 9, "g", "x.wait()")),
        (
            f'File "a.py", line 3, in f\n    g(x)\nFile "{torch.__file__}", line 9, in g\n    x',
            ("a.py", 3, "f", "g(x)"),
        ),
        (None, None),
    ],
)
def test_the_users_line_is_the_innermost_outside_torch(trace, line):
    node = torch.fx.Graph().placeholder("x")
    if trace:
        node.meta["stack_trace"] = trace
    found = source_line(node)
    assert (found and (found.file, found.line, found.function, found.code)) == line
