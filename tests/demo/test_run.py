"""The runner tells right from wrong, and each way of failing from the others."""

import os
from itertools import pairwise

import pytest
import torch.distributed as dist

from tp_compile_pass.demo import run
from tp_compile_pass.demo.run import ROW_TIMEOUT, VERDICTS, Outcome, explain_model, run_row


def off_by_one(gm, inputs):
    return lambda *args: tuple(out + 1 for out in gm(*args))


def wrong_gradient(gm, inputs):
    def compiled(*args):
        return tuple(2 * out - out.detach() for out in gm(*args))

    return compiled


def wrong_on_rank_1(gm, inputs):
    return off_by_one(gm, inputs) if dist.get_rank() == 1 else gm.forward


def raises(gm, inputs):
    raise RuntimeError("Error: no such luck")


def outcome(row, backend):
    return run._on_rank(row, backend)


def dies(row, backend):
    if backend == "tp_inductor" and dist.get_rank() == 1:
        os._exit(3)
    return Outcome("ok")


@pytest.mark.parametrize(
    ("backend", "row", "verdicts"),
    [
        ("eager", "all_reduce_sync", ["ok", "ok"]),
        (off_by_one, "all_reduce_sync", ["wrong", "wrong"]),
        (wrong_on_rank_1, "all_reduce_sync", ["ok", "wrong"]),
        (wrong_gradient, "tp_mlp", ["wrong", "wrong"]),
        (raises, "all_reduce_sync", ["error", "error"]),
        ("aot_eager", "tolist", ["graph break", "graph break"]),
    ],
)
def test_verdict(ranks2, backend, row, verdicts):
    assert [answer.verdict for answer in ranks2.run(outcome, row, backend)] == verdicts


def test_detail_is_the_telling_line(ranks2):
    assert ranks2.run(outcome, "all_reduce_sync", raises)[0].detail.endswith("Error: no such luck")


def test_the_worst_rank_counts(ranks2, monkeypatch):
    monkeypatch.setattr(run, "BACKENDS", (wrong_on_rank_1,))
    assert run_row(ranks2, "all_reduce_sync")[wrong_on_rank_1].verdict == "wrong"


def test_a_rank_that_dies_costs_one_cell(ranks2, monkeypatch):
    monkeypatch.setattr(run, "_on_rank", dies)
    outcomes = run_row(ranks2, "all_reduce_sync")
    assert [o.verdict for o in outcomes.values()] == ["ok", "ok", "error"]
    assert "rank 1 died with exit code 3" in outcomes["tp_inductor"].detail


def test_order_of_verdicts():
    for better, worse in pairwise(VERDICTS):
        assert Outcome(worse).worse_than(Outcome(better)) and not Outcome(better).worse_than(Outcome(worse))
    assert not Outcome("ok").worse_than(Outcome("ok"))


def test_explained_model_shows_its_collective(ranks2):
    (graph,) = ranks2.run(explain_model, timeout=ROW_TIMEOUT)[0].graphs
    (collective,) = graph.collectives
    assert (collective.kind, collective.line.code) == ("all_reduce", "return self.down(torch.relu(self.up(x)))")
    assert graph.warnings == []
