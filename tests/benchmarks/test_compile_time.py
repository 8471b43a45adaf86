"""The compile-time benchmark runs, and gives each sample to whom it belongs. Nothing here is timed."""

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from benchmarks.sampler import OURS, owner

ROOT = Path(__file__).parents[2]
INDUCTOR = ("/x/torch/_inductor/compile_fx.py", "compile_fx_inner")
HOOK, OBSERVE = (OURS + "compat.py", "inner_compile"), (OURS + "backend.py", "_observe")

PLAN = (OURS + "schedule/run.py", "plan")


def stack(*frames):
    """Outermost first."""
    frame = None
    for file, function in frames:
        frame = SimpleNamespace(f_code=SimpleNamespace(co_filename=file, co_name=function), f_back=frame)
    return frame


@pytest.mark.parametrize(
    ("frames", "expected"),
    [
        ([("/x/torch/_dynamo/symbolic_convert.py", "run")], "Dynamo"),
        ([(OURS + "backend.py", "tp_inductor"), (OURS + "compat.py", "compile_fx"), INDUCTOR], "Inductor"),
        ([INDUCTOR, HOOK, INDUCTOR], "Inductor"),
        ([INDUCTOR, ("/x/lib/subprocess.py", "wait")], "C++ compiler"),
        ([INDUCTOR, HOOK, OBSERVE, (OURS + "verify/check.py", "check_graph")], "verifier: verify/check.py"),
        (
            [INDUCTOR, HOOK, OBSERVE, (OURS + "verify/trace.py", "trace"), (OURS + "ir/walk.py", "nodes")],
            "verifier: ir/walk.py",
        ),
        ([INDUCTOR, PLAN, (OURS + "schedule/order.py", "plan")], "schedule: schedule/order.py"),
        ([INDUCTOR, (OURS + "schedule/run.py", "compile"), INDUCTOR], "Inductor"),
        ([INDUCTOR, HOOK, OBSERVE, (OURS + "ir/walk.py", "nodes"), ("/x/torch/fx/graph.py", "nodes")], "ir/walk.py"),
        ([INDUCTOR, HOOK, OBSERVE, (OURS + "ir/walk.py", "f"), (OURS + "compat.py", "is_contiguous")], "ir/walk.py"),
        ([(OURS + "compat_dynamo.py", "wrap"), ("/x/torch/_dynamo/variables/builder.py", "_wrap")], "Dynamo"),
    ],
)
def test_whose_time_it_is(frames, expected):
    assert owner(stack(*frames)) == expected


def test_it_runs(tmp_path):
    file = tmp_path / "figures.json"
    command = [sys.executable, "-m", "benchmarks", "compile_time", "--quick", "--json", str(file)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    results = json.loads(file.read_text())
    compiled = results["compile"]
    assert compiled["what"].startswith("training graph") and compiled["theirs"]["Inductor"] > 0
    assert compiled["share"] == pytest.approx(sum(compiled["ours"].values()))
    assert set(compiled["parts"]) == {"verifier", "schedule"} and sum(compiled["parts"].values()) <= compiled["share"]
    assert list(results["seconds by nodes"]) == ["1000", "2000"]
