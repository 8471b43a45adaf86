"""Ordered by us, programs give to the bit what they give in Inductor's order, and communication runs behind compute.

The ranks' collectives deliver NaN until they are waited for, so a read that came too early shows. The cost figures come
from a calibration of a slow machine, on which these tiny programs have something to hide behind.
"""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from overlap_cases import PROGRAMS, inputs, tensor_parallel, weights

from tp_compile_pass import compat, reports
from tp_compile_pass.cost import calibration, measure
from tp_compile_pass.cost.calibration import Calibration
from tp_compile_pass.ir import table
from tp_compile_pass.report.text import _schedule
from tp_compile_pass.schedule import run
from tp_compile_pass.testing import RankPool, deferred

pytestmark = pytest.mark.matrix
#: The tensors are tiny: any buffer that lives longer is a large share of the memory.
OPTIONS = {"tp.strict": True, "tp.memory_slack": 1.0}
PLAIN = {**OPTIONS, "tp.overlap": False}


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cache")
    env = {"XDG_CACHE_HOME": str(folder), "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor")}
    with RankPool(2, "deferred", setup=deferred.register, env=env) as pool:
        pool.run(slow_machine)
        yield pool


def slow_machine():
    if dist.get_rank() == 0:
        key = measure.key("cpu")
        figures = dict(flops=1e9, memory=1e9, launch=0.0, latency=1e-7, bandwidth=1e9)
        calibration.store(Calibration(key=key, measured="a test", **figures))
    dist.barrier()


def outputs(program, options, arguments, dynamic=False):
    torch._dynamo.reset()
    fn = torch.compile(program, backend="tp_inductor", options=options, dynamic=dynamic, fullgraph=True)
    torch.manual_seed(1)
    with compat.without_caches():
        return [value.clone() for value in fn(*arguments)]


def schedules(phase):
    return [record for report in reports()[-1:] for record in report.graphs[0].schedules if record.phase == phase]


def same(name, dynamic):
    """Runs a program in both orders; returns the exposed seconds before and after, and the steps of the code."""
    program, arguments = PROGRAMS[name], (inputs(), *weights(3))
    want = outputs(program, PLAIN, arguments, dynamic)
    assert reports()[-1].graphs[0].schedules == []
    got = outputs(program, OPTIONS, arguments, dynamic)
    for ours, theirs in zip(got, want, strict=True):
        assert not torch.isnan(theirs).any() and torch.equal(ours, theirs)
    assert deferred.pending() == []
    (record,) = schedules("inference")
    assert record.emitted == record.planned and not reports()[-1].graphs[0].warnings
    assert record.source == "calibration of a test"
    return record.exposed_before, record.exposed_after, record.emitted


def exposed(rows, **mark):
    """The schedule of a program compiled for so many rows."""
    torch._dynamo.reset()
    x = inputs(rows)
    if mark:
        torch._dynamo.mark_dynamic(x, 0, **mark)
    with compat.without_caches():
        torch.compile(PROGRAMS["beside"], backend="tp_inductor", options=OPTIONS)(x, *weights(3))
    (record,) = schedules("inference")
    return record


def the_same_order_at_other_sizes():
    """What the report says of other sizes is what it says of graphs compiled for these."""
    record = exposed(16, min=2, max=1024)
    (symbol,) = record.sizes
    assert record.sizes == {symbol: 16} and record.moved
    assert [other.sizes for other in record.other_sizes] == [{symbol: 2}, {symbol: 128}]
    for other in record.other_sizes:
        static = exposed(other.sizes[symbol])
        assert static.sizes == {} and static.other_sizes == []
        found = other.exposed_before, other.exposed_after
        assert found == pytest.approx((static.exposed_before, static.exposed_after))
        assert other.holds
    assert f"decided for {symbol} = 16; holds for {symbol} = 2 and for {symbol} = 128" in _schedule(record)
    worse = [replace(other, exposed_after=other.exposed_before + 1) for other in record.other_sizes[:1]]
    worse.append(replace(record.other_sizes[1], inside_memory=False))
    assert f"does not hold for {symbol} = 2 and for {symbol} = 128" in _schedule(replace(record, other_sizes=worse))


def other_sizes_are_possible_ones():
    record = exposed(16, min=8, max=20)
    assert [list(other.sizes.values()) for other in record.other_sizes] == [[8], [20]]
    record = exposed(16, min=16, max=20)  # an eighth is what it was decided for
    assert [list(other.sizes.values()) for other in record.other_sizes] == [[20]]


def impossible_sizes_cost_nothing():
    """Where the sizes cannot be computed, the order and the rest of the report are as without them."""
    want, translate, calls = exposed(16, min=2, max=1024), run.translate, []

    def fails_elsewhere(*args):
        calls.append(args)
        if len(calls) > 1:
            raise ZeroDivisionError
        return translate(*args)

    run.translate = fails_elsewhere
    try:
        record = exposed(16, min=2, max=1024)
    finally:
        run.translate = translate
    assert len(calls) == 1 + len(run.OTHER_SIZES)
    assert record.other_sizes == [] and record.sizes == want.sizes
    assert record.emitted == record.planned == want.planned
    assert not reports()[-1].graphs[0].warnings


@pytest.mark.parametrize(
    "check", [the_same_order_at_other_sizes, other_sizes_are_possible_ones, impossible_sizes_cost_nothing]
)
def test_the_report_says_for_which_sizes_an_order_is_right(ranks, check):
    ranks.run(check)


#: On torch 2.5 and 2.6 the second wait for a coalesced collective hangs on a process group in Python, with any backend.
HERE = [name for name in PROGRAMS if name != "several" or compat.TORCH > (2, 6)]


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", HERE)
def test_the_order_changes_no_bit(ranks, name, dynamic):
    mine, theirs = ranks.run(same, name, dynamic)
    assert mine == theirs  # both ranks decide the same
    before, after, steps = mine
    assert after <= 0.75 * before
    first = next(i for i, step in enumerate(steps) if step not in ("kernels", "wait"))
    assert "kernels" in steps[first : steps.index("wait")]  # the first wait is not where its collective is


# ------------------------------------------------------------------------------------------------------- training
def gradients(options):
    model = tensor_parallel()
    torch._dynamo.reset()
    compiled = torch.compile(model, backend="tp_inductor", options=options, fullgraph=True)
    x = inputs().requires_grad_()
    with compat.without_caches():
        compiled(x).sum().backward()
    return [x.grad, *(p.grad.to_local() if hasattr(p.grad, "to_local") else p.grad for p in model.parameters())]


def train():
    want = gradients(PLAIN)
    got = gradients(OPTIONS)
    assert all(torch.equal(a, b) for a, b in zip(got, want, strict=True))
    assert deferred.pending() == []
    (record,) = schedules("backward")
    assert record.emitted == record.planned
    assert len(record.collectives) == 3
    return record.exposed_before, record.exposed_after


def test_weight_gradients_run_beside_the_reduction_of_input_gradients(ranks):
    (before, after), other = ranks.run(train, timeout=400)
    assert (before, after) == other
    assert after < 0.3 * before


# ------------------------------------------------------------------------------------------------- walls and refusals
def sent(x):
    return x + 1


def wall():
    """A custom op that says it communicates: nothing passes it."""
    lib = torch.library.Library("overlap_test", "FRAGMENT")
    lib.define("exchange(Tensor x, str group_name) -> Tensor")
    lib.impl("exchange", lambda x, group_name: x + 1, "CompositeExplicitAutograd")
    lib.impl("exchange", lambda x, group_name: torch.empty_like(x), "Meta")
    name = dist.group.WORLD.group_name

    def fn(x, a, b, c):
        reduced = torch.ops._c10d_functional.all_reduce(x @ a, "sum", name)
        exchanged = torch.ops.overlap_test.exchange(x, name)
        return torch.ops._c10d_functional.wait_tensor(reduced), exchanged @ b, (x @ b) @ c

    arguments = (inputs(), *weights(3))
    want = outputs(fn, PLAIN, arguments)
    assert all(torch.equal(a, b) for a, b in zip(outputs(fn, OPTIONS, arguments), want, strict=True))
    (record,) = schedules("inference")
    return record.emitted


def test_nothing_passes_an_op_that_communicates_in_an_unknown_way(ranks):
    for steps in ranks.run(wall):
        assert steps[0:2] == ["kernels", "all_reduce_"]


def refused():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run.compat_inductor, "ordering_refused", lambda: "it is from the future")
        outputs(PROGRAMS["beside"], OPTIONS, (inputs(), *weights(3)))
    graph = reports()[-1].graphs[0]
    return graph.notes, graph.schedules


def test_an_unknown_torch_keeps_inductors_order_and_says_so(ranks):
    for notes, records in ranks.run(refused):
        assert "Inductor's order is kept: it is from the future" in notes and records == []


# ------------------------------------------------------------------------------------------------------------- caches
def cached(changes):
    """Compiles in this process, with what earlier ones have cached; tells whether the order was decided anew."""
    torch._dynamo.reset()
    fn = torch.compile(PROGRAMS["beside"], backend="tp_inductor", options={**OPTIONS, **changes})
    arguments = (inputs(), *weights(3))
    got, want = fn(*arguments), PROGRAMS["beside"](*arguments)
    torch.testing.assert_close(got, want)
    graph = reports()[-1].graphs[0]
    return bool(graph.schedules), [note for note in graph.notes if "cache" in note]


def test_another_process_loads_the_order_and_a_changed_option_decides_anew(tmp_path):
    def outcomes(*changes):
        env = {"XDG_CACHE_HOME": str(tmp_path), "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "inductor")}
        with RankPool(2, env=env) as pool:
            return [pool.run(cached, change) for change in changes]

    # The ranks share the cache: one that comes later loads what the other has decided.
    assert any(anew for anew, _ in outcomes({})[0])
    plain, again, changed = outcomes({"tp.overlap": False}, {}, {"tp.memory_slack": 0.5})
    assert not any(anew for anew, _ in plain + again)
    assert any(anew for anew, _ in changed)
    assert all(len(notes) == 1 for _, notes in again)


def test_the_key_changes_with_the_code_and_the_figures(monkeypatch):
    from tp_compile_pass.cost import defaults, shared

    assert shared.digest(defaults.costs("cpu", 1)) != shared.digest(defaults.costs("cpu", 2))
    code = run._code()
    run._code.cache_clear()
    monkeypatch.setattr(Path, "read_bytes", lambda self: b"changed")
    assert run._code() != code
    run._code.cache_clear()


def registered():
    """A custom collective that the table knows and Inductor does not: neither it nor its wait moves."""
    name = dist.group.WORLD.group_name
    lib = torch.library.Library("overlap_test", "FRAGMENT")
    lib.define("reduce(Tensor x, str group_name) -> Tensor")
    real = torch.ops._c10d_functional.all_reduce
    lib.impl("reduce", lambda x, group_name: real(x, "sum", group_name), "CompositeExplicitAutograd")
    lib.impl("reduce", lambda x, group_name: torch.empty_like(x), "Meta")
    table.register("overlap_test::reduce", table.CollectiveOp("all_reduce", reads=("x",)))

    def fn(x, a, b, c):
        mine = torch.ops._c10d_functional.wait_tensor(torch.ops.overlap_test.reduce(x @ a, name))
        reduced = torch.ops._c10d_functional.wait_tensor(real(x @ b, "sum", name))
        return mine + 1, reduced @ b, (x @ b) @ c

    arguments = (inputs(), *weights(3))
    want = outputs(fn, PLAIN, arguments)
    assert all(torch.equal(a, b) for a, b in zip(outputs(fn, OPTIONS, arguments), want, strict=True))
    (record,) = schedules("inference")
    return record.planned, record.emitted


def test_a_collective_that_inductor_does_not_know_is_a_wall_and_so_is_its_wait(ranks):
    for planned, code in ranks.run(registered):
        assert planned == code
        communication = [step for step in code if step != "kernels"]
        assert sorted(communication) == ["all_reduce_", "reduce", "wait", "wait"] and communication[0] == "reduce"


@pytest.mark.parametrize(("devices", "expected"), [(["meta", "cpu"], "cpu"), (["cpu", "meta", "cuda"], "cuda")])
def test_the_device_that_a_graph_computes_on(devices, expected):
    gm = torch.fx.GraphModule({}, torch.fx.Graph())
    for number, device in enumerate(devices):
        fake = torch._subclasses.FakeTensorMode()  # which has tensors of devices that are not there
        with fake:
            value = torch.empty(2, device=device)
        gm.graph.placeholder(f"x{number}").meta["val"] = value
    assert run._device(gm) == expected
