"""The real frameworks, on two gloo ranks: our backend runs, the numbers are the framework's own, and a wrong option of
ours is not swallowed.

`make frameworks` installs them; elsewhere what is not installed is skipped.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from .cases import CASES
from .launching import ENVIRONMENT, RANKS, TORCHRUN
from .results import Result

pytestmark = pytest.mark.frameworks

#: Seconds for one start of an example, imports and compilation included.
TIMEOUT = 500

installed = [
    pytest.param(case, id=case.name, marks=pytest.mark.skipif(bool(case.missing), reason=case.missing))
    for case in CASES
]


class Failed(AssertionError):
    """The example ended with an error; the message is its output."""


def launch(case, backend, folder, **variables):
    """Runs a case's example on its ranks. Returns, by rank, what it computed and our reports of it."""
    folder.mkdir()
    worker = [str(Path(__file__).parent / "worker.py"), case.example, case.function, backend, str(folder)]
    ran = subprocess.run(
        [sys.executable, *TORCHRUN, *worker],
        cwd=folder,
        env={**ENVIRONMENT, **variables},
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
    )
    if ran.returncode:
        raise Failed(ran.stdout + ran.stderr)
    return [
        (torch.load(folder / f"values-{rank}.pt"), json.loads((folder / f"reports-{rank}.json").read_text()))
        for rank in range(RANKS)
    ]


@pytest.mark.parametrize("case", installed)
def test_framework(case, tmp_path, results):
    eager = launch(case, "no", tmp_path / "eager")
    compiled = launch(case, "tp_inductor", tmp_path / "compiled")
    for (expected, none), (values, graphs) in zip(eager, compiled, strict=True):
        assert none == []
        assert expected.keys() == values.keys() and expected
        torch.testing.assert_close(values, expected)
        assert_ran(case, graphs)
    with pytest.raises(Failed, match=r"TP_COMPILE_PASS_STRIT is unknown; did you mean tp\.strict"):
        launch(case, "tp_inductor", tmp_path / "wrong", TP_COMPILE_PASS_STRIT="1")
    graphs = compiled[0][1]
    collectives = sum(len(graph["collectives"]) for graph in graphs)
    results.append(Result.passed(case, len(graphs), collectives))


def assert_ran(case, graphs):
    """Each phase was compiled by us through Inductor, with its collectives in the graph, and without mishap."""
    for phase in case.phases:
        assert any(phase in graph["phases"] for graph in graphs)
        there = any(collective["phase"] == phase for graph in graphs for collective in graph["collectives"])
        assert there is case.collectives
    assert {graph["inner"] for graph in graphs} == {"inductor"}
    assert [warning for graph in graphs for warning in graph["warnings"]] == []
