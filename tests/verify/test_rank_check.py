"""Ranks that compile different communication say so instead of hanging; ranks that only look different say nothing."""

import os
import time
import warnings
from contextlib import nullcontext

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
from torch._inductor import config
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard

from tp_compile_pass import reports
from tp_compile_pass.report.record import clear_reports
from tp_compile_pass.testing import RankError, RankPool, ranks
from tp_compile_pass.verify import rank_check

pytestmark = pytest.mark.matrix
#: Seconds for a rank that does not come, in the cases where none comes; and for all others.
SHORT, LONG = 3.0, 100.0


def reduce(x, op="sum", group=None):
    return funcol.all_reduce(x, op, group or dist.group.WORLD)


def compiled(fn, x, mode="error", timeout=LONG, **more):
    """(what it returned, the error) of calling `fn`, compiled, on `x`."""
    options = {"tp.inner": "aot_eager", "tp.strict": True, "tp.rank_check": mode, "tp.rank_check_timeout": timeout}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return torch.compile(fn, backend="tp_inductor", options=options, **more)(x), ""
    except Exception as error:
        return None, str(error)


def in_background(expected=True):
    """The warnings of the last graph, once the background thread has settled it."""
    deadline = time.monotonic() + LONG
    while rank_check._pending and time.monotonic() < deadline:
        if expected and reports()[-1].graphs[0].warnings:
            break
        time.sleep(0.05)
    return reports()[-1].graphs[0].warnings


# ------------------------------------------------------------------------------------------- graphs that do not meet
def other_order(x):
    a, b = ("sum", "max") if dist.get_rank() == 0 else ("max", "sum")
    return reduce(x * 2, a) + reduce(x * 3, b)


def other_reduction(x):
    return reduce(x, "sum" if dist.get_rank() == 0 else "max")


def other_shape(x):
    return reduce(x if dist.get_rank() == 0 else x[:1])


def other_dtype(x):
    return reduce(x if dist.get_rank() == 0 else x.double())


def other_kind(x):
    if dist.get_rank() == 0:
        return reduce(x)
    return funcol.all_gather_tensor(x, 0, dist.group.WORLD)


def one_more(x):
    y = reduce(x)
    return reduce(y + 1) if dist.get_rank() == 1 else y


def nested_in_a_checkpoint(x):
    from torch.utils.checkpoint import checkpoint

    return checkpoint(lambda y: reduce(y, "sum" if dist.get_rank() == 0 else "min"), x, use_reentrant=False)


def other_placements(x):
    mesh = init_device_mesh("cpu", (2,))

    def fn(x):
        d = DTensor.from_local(x, mesh, [Shard(0)], run_check=False)
        return d.redistribute(mesh, [Replicate() if dist.get_rank() == 0 else Shard(1)]).to_local()

    return fn


MISMATCHES = [
    other_order,
    other_reduction,
    other_shape,
    other_dtype,
    other_kind,
    one_more,
    nested_in_a_checkpoint,
]


def mismatches():
    for fn in MISMATCHES:
        _, error = compiled(fn, torch.ones(2, 3))
        assert "ranks 0 and 1 compiled different communication on process group" in error.replace("1 and 0", "0 and 1")
        assert fn.__name__ in error and "test_rank_check.py:" in error, error
        assert "step" in error and "rank 0" in error and "rank 1" in error
    dist.barrier()


def placements():
    _, error = compiled(other_placements(None), torch.ones(2, 3))
    dist.barrier()
    return error


def other_group():
    second = dist.new_group([0, 1])
    mine = dist.group.WORLD if dist.get_rank() == 0 else second
    _, error = compiled(lambda x: reduce(x, "sum", mine), torch.ones(2, 3))
    dist.barrier()
    return error


def branch_on_rank():
    def fn(x):
        return reduce(x) if dist.get_rank() == 0 else x + 1

    _, error = compiled(fn, torch.ones(2, 3))
    texts = [error] if dist.get_rank() == 0 else in_background()
    dist.barrier()
    return texts


def never_compiles():
    error = ""
    if dist.get_rank() == 0:
        _, error = compiled(reduce, torch.ones(2, 3), timeout=SHORT)
    dist.barrier()
    return error


def dies(directory):
    if dist.get_rank() == 1:
        os._exit(7)
    _, error = compiled(reduce, torch.ones(2, 3), timeout=SHORT)
    with open(os.path.join(directory, "said"), "w") as file:
        file.write(error)


def warned_in_the_background():
    out, error = compiled(other_reduction, torch.ones(2, 3), mode="warn")
    assert out is not None and not error
    texts = in_background()
    dist.barrier()
    return texts


def test_each_mismatch_is_an_error_on_both_ranks(ranks2):
    ranks2.run(mismatches)


def test_dtensors_redistributed_differently(ranks2):
    for error in ranks2.run(placements):
        assert "on DTensor" in error and "Replicate" in error and "Shard" in error


def test_another_group_of_the_same_ranks(ranks2):
    for error in ranks2.run(other_group):
        assert "compiled different communication on process group" in error and "nothing" in error


def test_a_branch_on_rank_is_told_on_both(ranks2):
    for texts in ranks2.run(branch_on_rank):
        assert "nothing: its graph has ended" in texts[0]


def test_a_rank_that_never_compiles_is_named(ranks2):
    error, _ = ranks2.run(never_compiles)
    assert "rank 1 did not compile" in error and "within 3 s" in error and "test_rank_check.py:" in error


def test_a_dead_rank_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(ranks, "GRACE", LONG)  # the pool ends rank 0 as well: not before it has spoken
    with RankPool(2) as pool, pytest.raises(RankError, match="rank 1 died"):
        pool.run(started)
        pool.run(dies, str(tmp_path))
    assert "rank 1 did not compile" in (tmp_path / "said").read_text()


def started():
    pass


def test_warn_tells_in_the_background(ranks2):
    for texts in ranks2.run(warned_in_the_background):
        assert "reduce_op=sum" in texts[0] and "reduce_op=max" in texts[0]


# -------------------------------------------------------------------------------------- graphs that only look different
def graph_break():
    def fn(x):
        y = reduce(x)
        if dist.get_rank() == 1:
            torch._dynamo.graph_break()
        return reduce(y + 1)

    out, error = compiled(fn, torch.ones(2, 3))
    assert not error, error
    torch.testing.assert_close(out * 1, torch.full((2, 3), 6.0))
    texts = [text for report in reports()[-2:] for text in report.graphs[0].warnings]
    dist.barrier()
    return texts


def late():
    if dist.get_rank() == 1:
        time.sleep(1)
    out, error = compiled(reduce, torch.ones(2, 3))
    assert not error and out.sum() == 12
    return in_background(False)


def recompiles_on_one_rank():
    state = [0]

    def fn(x):
        return reduce(x) * 2 + state[0]

    for _ in range(3):
        state[0] += dist.get_rank()  # rank 1 compiles anew each time, rank 0 never
        out, error = compiled(fn, torch.ones(2, 3))
        assert not error and out.shape == (2, 3)
    return in_background(False)


def rank_local_graph():
    def local(x):
        return x.sin() + 1

    clear_reports()
    if dist.get_rank() == 0:
        assert not compiled(local, torch.ones(3))[1]
    out, error = compiled(reduce, torch.ones(2, 3))
    assert not error and out.sum() == 12
    return [text for report in reports() for text in report.graphs[0].warnings]


def dynamic_on_one_rank():
    out, error = compiled(reduce, torch.ones(2, 3), dynamic=dist.get_rank() == 0)
    assert not error and out.sum() == 12
    return in_background(False)


def cached():
    """Rank 0 finds the graph in its caches, rank 1 has none."""

    def fn(x):
        return reduce(x * 5) + 1

    clear_reports()
    options = {"tp.rank_check": "error", "tp.rank_check_timeout": LONG}
    for _ in range(2):
        torch._dynamo.reset()
        with config.patch(force_disable_caches=True) if dist.get_rank() == 1 else nullcontext():
            out = torch.compile(fn, backend="tp_inductor", options=options)(torch.ones(2, 3))
        assert out.sum() == 66
    return [text for report in reports() for text in report.graphs[0].warnings]


def stages():
    """Two groups of two ranks run different graphs of one function; then one rank of the second group differs."""
    groups = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    mine, stage = groups[dist.get_rank() // 2], dist.get_rank() // 2

    def fn(x):
        return reduce(x, "sum", mine) if stage == 0 else reduce(reduce(x, "max", mine), "sum", mine)

    out, error = compiled(fn, torch.ones(2, 3))
    assert not error and out.sum() == 12, error

    def odd(x):
        return reduce(x, "min" if dist.get_rank() == 3 else "sum", mine)

    _, error = compiled(odd, torch.ones(2, 3))
    dist.barrier()
    return error


def feeds():
    def fn(x):
        a = reduce(x)
        return reduce((a if dist.get_rank() == 0 else x) * 2, "max") + a

    out, error = compiled(fn, torch.ones(2, 3))
    assert out is not None and not error
    return reports()[-1].graphs[0].warnings


def test_a_graph_break_on_one_rank_is_a_remark(ranks2):
    for texts in ranks2.run(graph_break):
        assert any("has a graph break there" in text for text in texts), texts


@pytest.mark.parametrize("check", [late, recompiles_on_one_rank, dynamic_on_one_rank, rank_local_graph])
def test_what_is_right_is_no_alarm(ranks2, check):
    assert ranks2.run(check) == [[], []]


def test_a_rank_that_hits_its_cache_is_no_alarm(tmp_path):
    with RankPool(2, env={"TORCHINDUCTOR_CACHE_DIR": str(tmp_path)}) as pool:
        assert pool.run(cached) == [[], []]


def test_subgroups_compare_among_themselves(ranks4):
    errors = ranks4.run(stages)
    assert errors[:2] == ["", ""]
    for error in errors[2:]:
        assert "ranks 2 and 3" in error.replace("3 and 2", "2 and 3") and "reduce_op=min" in error


def test_other_feeds_are_a_remark(ranks2):
    for (text,) in ranks2.run(feeds):
        assert "feed them differently" in text
