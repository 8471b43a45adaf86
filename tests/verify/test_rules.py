"""The rules: no valid graph is rejected, every mutant is caught by the rule that is meant for it."""

import pytest
import torch
from broken_graphs import MUTANTS
from valid_graphs import PROGRAMS, traced

from tp_compile_pass.verify.check import differences, findings
from tp_compile_pass.verify.snapshot import snapshot
from tp_compile_pass.verify.trace import trace

pytestmark = pytest.mark.matrix


@pytest.fixture(scope="module", autouse=True)
def unknown_op():
    """A custom op with a group argument, of which the table knows nothing."""
    with torch.library._scoped_library("tp_verify_test", "DEF") as lib:
        lib.define("exchange(Tensor x, str group_name) -> Tensor")
        yield


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_a_valid_graph_is_not_rejected(program):
    assert findings(trace(traced(program)), "forward") == []


@pytest.mark.parametrize("name", MUTANTS)
def test_a_broken_graph_is_caught(name):
    make, rules = MUTANTS[name]
    gm, edit = make()
    before = trace(gm)
    assert findings(before, "forward") == [], "the graph is broken before the edit"
    frozen = snapshot(before)
    edit(gm)
    gm.graph.lint()
    after = trace(gm)
    caught = {text.partition(":")[0] for text in differences(frozen, snapshot(after))}
    caught |= {finding.rule for finding in findings(after, "forward")}
    assert caught & set(rules), f"caught by {caught or 'nothing'}, not by {rules}"


def test_there_are_thirty_kinds_of_mutants():
    assert len(MUTANTS) >= 30
