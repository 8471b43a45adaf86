"""The rules: no valid graph is rejected, every mutant is caught by the rule that is meant for it."""

import broken_nested_graphs  # noqa: F401  # registers more mutants
import pytest
import torch
from broken_graphs import MUTANTS
from valid_graphs import PROGRAMS, body, mlp, nested, reduce, traced

from tp_compile_pass.verify import trace as walker
from tp_compile_pass.verify.check import differences, findings
from tp_compile_pass.verify.memory import access
from tp_compile_pass.verify.rules import GRAPH_RULES, PHASE_RULES
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


def test_each_rule_has_a_mutant():
    # group-size needs a process group, copied-input a version of torch; other tests have them.
    elsewhere = {"group-size", "copied-input"}
    named = {rule for _, rules in MUTANTS.values() for rule in rules}
    assert {rule.name for rule in (*GRAPH_RULES, *PHASE_RULES)} <= named | elsewhere


def test_the_walk_looks_at_each_executed_node_once(monkeypatch):
    looked = []
    monkeypatch.setattr(walker, "access", lambda node: looked.append(node) or access(node))
    counts = []
    for layers in (10, 20, 40):
        looked.clear()
        trace(nested(body(reduce_of_double), layers))
        counts.append(len(looked))
    assert counts[1] == 2 * counts[0] and counts[2] == 4 * counts[0]


def reduce_of_double(x):
    return reduce(x * 2)


def wrong_group_size():
    gm = traced(mlp)
    return [f.rule for f in findings(trace(gm), "forward")]


def test_a_group_of_another_size(ranks2):
    # The graph says eight ranks, and group "0" has two.
    assert ranks2.run(wrong_group_size) == [["group-size"] * 2] * 2
