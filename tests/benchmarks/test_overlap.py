"""The overlap benchmark runs, and makes the right ratios of times. Nothing here is timed."""

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest
from benchmarks.overlap import run, veth
from benchmarks.overlap.measure import ALONE, WAYS
from benchmarks.overlap.programs import PROGRAMS

ROOT = Path(__file__).parents[2]


def test_ratios():
    slow, fast = [4.0, 8.0, 4.0], [2.0, 2.0, 2.0]
    times = {way: fast for way in WAYS} | {"inductor": slow, "communication alone": [1.5] * 3}
    times |= {alone: [1.0] * 3 for alone in ALONE.values()}
    late = {**times, "communication alone": [1.6] * 3}  # the other rank
    peaks = {**dict.fromkeys(WAYS, 8), "tp_inductor": 6}
    rest = {"peaks": peaks, "failed": {}, "bandwidth": 125e6}
    found = run.figures("halves", [{"times": t, **rest} for t in (times, late)])
    ours = found["ways"]["tp_inductor"]
    assert (found["compute ms"], found["communication ms"], found["bound ms"], found["gbps"]) == (1e3, 1.6e3, 1.6e3, 1)
    assert ours == {
        "ms": 2e3,
        "spread": 0,
        "of bound": 2 / 1.6,
        "best ms": 2e3,
        "best of bound": 2 / 1.6,
        "of inductor": 0.5,
        "of eager": 1,
        "exposed ms": 1e3,
        "exposed of inductor": 1 / 3,
        "peak of inductor": 0.75,
    }
    assert found["ways"]["inductor"]["spread"] == 1.0  # quartiles 4 and 8, median 4


def test_a_way_that_fails_is_told():
    times = {way: [1.0, 1.0] for way in [*WAYS, *ALONE.values(), "communication alone"]}
    del times["tp_inductor"], times["inductor"]
    failed = dict.fromkeys(["tp_inductor", "inductor"], "RuntimeError: no")
    found = run.figures("halves", [{"times": times, "peaks": {}, "failed": failed, "bandwidth": 1.0}])
    assert found["ways"]["tp_inductor"] == {"failed": "RuntimeError: no"}
    assert found["ways"]["eager"]["of eager"] == 1 and math.isnan(found["ways"]["eager"]["of inductor"])


def test_it_runs(tmp_path):
    file = tmp_path / "figures.json"
    command = [sys.executable, "-m", "benchmarks", "overlap", "--quick", "--rounds", "2", "--json", str(file)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    results = json.loads(file.read_text())
    assert list(results["programs"]) == list(PROGRAMS) and results["link"] == "simulated"
    for name, program in results["programs"].items():
        assert PROGRAMS[name].what in done.stdout
        assert program["bound ms"] == max(program["compute ms"], program["communication ms"]) > 0
        assert list(program["ways"]) == list(WAYS)
        for way, row in program["ways"].items():
            assert all(math.isfinite(value) for value in row.values()), (way, row)


def test_no_veth_link_without_root(monkeypatch, capsys):
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    run.main(None, None, True, ["halves"], "veth", 2)
    assert "skipped: no link between namespaces here, network namespaces need root" in capsys.readouterr().out


@pytest.mark.skipif(bool(veth.why_not()), reason=veth.why_not())
def test_the_veth_link_is_torn_down():
    def namespaces():
        listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True).stdout
        return {line.split()[0] for line in listed.splitlines() if line.startswith(f"tp-bench-{os.getpid()}-")}

    try:
        with pytest.raises(KeyError), veth.link() as link:
            assert len(namespaces()) == 2 and link.backend == "gloo"
            raise KeyError
    except OSError as error:
        pytest.skip(f"the kernel refuses: {error}")
    assert namespaces() == set()
