"""A short, deterministic run of the fuzzers; `python -m tests.fuzz` runs them for as long as you like."""

import random
from collections import Counter

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from random_edits import ILLEGAL, LEGAL
from random_programs import LOCAL, NATIVE, Program, check, copied, pool, programs, traced
from verify_only import look

from tp_compile_pass.verify.check import differences, findings
from tp_compile_pass.verify.snapshot import snapshot
from tp_compile_pass.verify.trace import trace

GRAPHS = programs(LOCAL + NATIVE, training=False)
SHORT = settings(
    derandomize=True,
    deadline=None,
    database=None,
    max_examples=40,
    phases=(Phase.generate,),  # a failure is shrunk by the long run
    suppress_health_check=list(HealthCheck),
)
FEW = settings(SHORT, max_examples=8)

#: Programs that once failed, shrunk.
FOUND: list[Program] = [
    Program(
        (
            *(("ignored", 2, 5), ("matmul", 0, 2), ("native", 2, 2), ("synchronous", 7, 0)),
            *(("in_place", 3, 3), ("native", 3, 4), ("synchronous", 3, 2)),
        ),
        seed=19,
    ),
    Program((("norm", 6, 3), ("checkpoint", 7, 2), ("reduce", 1, 7), ("norm", 3, 1)), training=True, seed=52),
]


def broken_rules(gm, before):
    after = trace(gm)
    return [f.rule for f in findings(after, "x")] + list(differences(before, snapshot(after)))


@SHORT
@given(GRAPHS, st.integers(0, 999), st.lists(st.sampled_from(LEGAL), min_size=1, max_size=4))
def test_no_rule_rejects_a_legal_edit(program, seed, edits):
    gm = traced(program)
    before = trace(gm)
    assert findings(before, "x") == []
    frozen = snapshot(before)
    for edit in edits:
        edit(gm, random.Random(seed))
        gm.graph.lint()
    assert broken_rules(gm, frozen) == [], [edit.__name__ for edit in edits]


KILLED: Counter = Counter()


@SHORT
@given(GRAPHS, st.integers(0, 999))
def test_some_rule_catches_each_illegal_edit(program, seed):
    valid = traced(program)
    for edit in ILLEGAL:
        gm = copied(valid)
        frozen = snapshot(trace(gm))
        if edit(gm, random.Random(seed)):
            gm.graph.lint()
            assert broken_rules(gm, frozen), edit.__name__
            KILLED[edit.__name__] += 1


def test_each_illegal_edit_was_tried():
    assert not {edit.__name__ for edit in ILLEGAL} - set(KILLED)


DROPS_ONE = 148


@pytest.mark.matrix
def test_no_valid_program_has_a_finding():
    # The last one has an unused collective in a checkpoint, which torch drops.
    seen, found = look([*range(1, 12), DROPS_ONE])  # `python -m tests.fuzz --verify-only` looks at 500
    assert found == []
    assert seen["programs"] == seen["captured graphs"] == 12
    assert min(seen[f"{phase} graphs"] for phase in ("inference", "forward", "backward")) >= 4
    assert seen["splits compared"] >= 4 and seen["collectives"] >= 24


# ------------------------------------------------------------------------------------------------ programs on ranks
@pytest.fixture(scope="module")
def ranks():
    """Two ranks, if possible such that collectives deliver NaN until they are waited for."""
    with pool() as ranks:
        yield ranks


def test_random_programs_equal_eager(ranks):
    @FEW
    @given(programs())
    def equal(program):
        ranks.run(check, program, {"tp.inner": "aot_eager", "tp.strict": True})

    equal()


@pytest.mark.parametrize("program", FOUND, ids=repr)
def test_what_once_failed(ranks, program):
    ranks.run(check, program, {"tp.inner": "inductor", "tp.strict": True})
