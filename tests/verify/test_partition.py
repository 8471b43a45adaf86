"""The split of a joint graph into forward and backward: none of torch's is rejected, and a broken one is found."""

import warnings

import functorch.compile
import pytest
import torch
import torch._inductor.compile_fx
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
from torch.fx.experimental.proxy_tensor import make_fx
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils.checkpoint import checkpoint

from tp_compile_pass import explain
from tp_compile_pass.ir import collectives
from tp_compile_pass.verify import partition
from tp_compile_pass.verify.partition import Act, acts, compare

pytestmark = pytest.mark.matrix
aten, c10d = torch.ops.aten, torch.ops._c10d_functional


@pytest.fixture(scope="module", autouse=True)
def group():
    """Two ranks, of which this is one; nothing communicates."""
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    yield
    dist.destroy_process_group()


# ------------------------------------------------------------------------------------------------- programs that train
def reduced(x, op="sum"):
    return c10d.wait_tensor(c10d.all_reduce(x.contiguous(), op, dist.group.WORLD.group_name))


class Reduce(torch.autograd.Function):
    """Reduces in forward and in backward."""

    @staticmethod
    def forward(ctx, x):
        return reduced(x)

    @staticmethod
    def backward(ctx, grad):
        return reduced(grad)


def layer(x, w):
    return Reduce.apply(torch.tanh(x @ w))


def layers(x, w):
    return layer(layer(x, w), w) @ w


def equal_ones(x, w):
    """Which torch merges."""
    y = x @ w
    return Reduce.apply(y).sin() * Reduce.apply(y).cos()


def result_unused(x, w):
    y = x @ w
    Reduce.apply(y.sin())
    return y.cos()


def wait_ignored(x, w):
    y = (x @ w).detach()
    out = c10d.all_reduce(y, "sum", dist.group.WORLD.group_name)
    c10d.wait_tensor(out)
    return x @ w + out


def started_and_dropped(x, w):
    c10d.all_reduce(w.detach() * 2, "sum", dist.group.WORLD.group_name)
    return layer(x, w)


def synchronous(x, w):
    y = (x @ w).detach()
    dist.all_reduce(y)
    return layer(x, w) + y


def gathered(x, w):
    y = funcol.all_gather_tensor((x @ w).detach(), 0, dist.group.WORLD)
    return layer(x, w) + y[:4] + funcol.reduce_scatter_tensor(y, "sum", 0, dist.group.WORLD)


def of_random_numbers(x, w):
    """Equal calls that differ."""
    a, b = (reduced(torch.rand_like(x)) for _ in range(2))
    return layer(x, w) * a + b


def checkpointed(x, w):
    return checkpoint(lambda v: layer(v, w).sin() @ w, x, use_reentrant=False)


def checkpointed_twice(x, w):
    def inside(x, w):
        return layer(x, w).sin()

    return checkpoint(inside, checkpoint(inside, x, w, use_reentrant=False), w, use_reentrant=False)


def branching(x, w):
    return layer(x, w) + torch.cond(x.sum() > 0, lambda a: reduced(a.sin()), lambda a: a.cos(), (x.detach(),))


#: The programs, and how many collectives their joint graphs have: none gets lost on the way there either.
PROGRAMS = {
    layers: 4,
    equal_ones: 4,
    result_unused: 1,
    wait_ignored: 1,
    started_and_dropped: 3,
    synchronous: 3,
    gathered: 4,
    of_random_numbers: 4,
    checkpointed: 2,
    checkpointed_twice: 4,
    branching: 3,
}
RECOMPUTED = {checkpointed: 1, checkpointed_twice: 2}
if hasattr(torch.compiler, "nested_compile_region"):
    region = torch.compiler.nested_compile_region(layer)

    def nested_regions(x, w):
        """Split inside out: first the region, then what calls it."""
        return region(region(x, w), w)

    PROGRAMS[nested_regions] = 4


def compiled(program, inner, **options):
    """The report of one training step, and what was warned about."""
    x, w = (torch.randn(4, 4, requires_grad=True) for _ in range(2))
    options = {"tp.inner": inner, "tp.strict": True, **options}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        (graph,) = explain(lambda x, w: program(x, w).sum(), options=options)(x, w).graphs
    return graph, [str(w.message) for w in caught if "tp_inductor" in str(w.message)]


@pytest.fixture(params=["aot_eager", "inductor"])
def inner(request):
    return request.param


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_a_split_of_torchs_is_not_rejected(program, inner, monkeypatch):
    compared = []
    monkeypatch.setattr(partition, "compare", lambda *graphs: compared.append(graphs) or compare(*graphs))
    graph, messages = compiled(program, inner)
    assert (graph.findings, messages) == ([], [])
    joint, forward, backward = compared[-1]
    assert len(joint) == PROGRAMS[program]
    assert len(forward) + len(backward) >= len(joint) - 2 * (program is equal_ones) + RECOMPUTED.get(program, 0)
    again = [note for note in graph.notes if "communicate again" in note]
    assert len(again) == RECOMPUTED.get(program, 0)
    assert all("activation checkpoint" in note and "test_partition.py:" in note for note in again)


def test_no_comparison_where_nothing_communicates_or_verification_is_off(monkeypatch):
    monkeypatch.setattr(partition, "compare", lambda *graphs: 1 / 0)
    compiled(lambda x, w: torch.tanh(x @ w), "aot_eager")
    compiled(layers, "aot_eager", **{"tp.verify": "off"})


# ---------------------------------------------------------------------------------------------------- broken splits
def starts(graph):
    return [n for n in graph.graph.nodes if collectives.collective_op(n)]


def lose(graph):
    """Takes a collective out, and its wait."""
    start = starts(graph)[0]
    (wait,) = start.users
    wait.replace_all_uses_with(start.args[0])
    for node in (wait, start):
        graph.graph.erase_node(node)


def repeat(graph, start):
    """Does `start`, a collective of some graph, once more on an input of `graph`."""
    operand = next(n for n in graph.graph.nodes if n.op == "placeholder" and n.meta["val"].shape == (4, 4))
    output = next(iter(reversed(graph.graph.nodes)))
    with graph.graph.inserting_before(output):
        again = graph.graph.create_node("call_function", start.target, (operand, *start.args[1:]), name=start.name)
        wait = graph.graph.call_function(c10d.wait_tensor.default, (again,))
        total = graph.graph.call_function(aten.add.Tensor, (operand, wait))
    for node in (again, wait, total):
        node.meta = dict(start.meta)
    first = next(n for n in output.args[0] if n is not None and n.meta["val"].shape == (4, 4))
    output.args = ([total if n is first else n for n in output.args[0]],)


def lost_in_forward(forward, backward):
    lose(forward)


def lost_in_backward(forward, backward):
    lose(backward)


def done_again_in_backward(forward, backward):
    repeat(backward, starts(forward)[0])


def one_lost_and_another_done_twice(forward, backward):
    second = starts(forward)[1]
    lose(forward)
    repeat(backward, second)


BROKEN = {
    lost_in_forward: [("lost", "error")],
    lost_in_backward: [("lost", "error")],
    done_again_in_backward: [("recomputed", "warning")],
    one_lost_and_another_done_twice: [("lost", "error"), ("recomputed", "warning")],
}


def breaking(monkeypatch, edit):
    def split(original):
        def broken(*args, **kwargs):
            forward, backward = original(*args, **kwargs)
            edit(forward, backward)
            for graph in (forward, backward):
                graph.graph.lint()
                graph.recompile()
            return forward, backward

        return broken

    for module in (functorch.compile, torch._inductor.compile_fx):
        monkeypatch.setattr(
            module, "min_cut_rematerialization_partition", split(module.min_cut_rematerialization_partition)
        )


@pytest.mark.parametrize("edit", BROKEN, ids=lambda edit: edit.__name__)
def test_a_broken_split_is_found_with_its_line(edit, inner, monkeypatch):
    breaking(monkeypatch, edit)
    graph, messages = compiled(layers, inner, **{"tp.verify": "warn"})
    assert [(f.rule, f.severity) for f in graph.findings] == BROKEN[edit]
    assert all(
        f.phase == "joint" and str(f.line).rpartition("/")[2].startswith("test_partition.py:") for f in graph.findings
    )
    assert len(messages) == len(graph.findings)


def test_a_lost_collective_is_an_error_and_one_done_twice_is_none(monkeypatch):
    breaking(monkeypatch, lost_in_forward)
    with pytest.raises(Exception, match=r"lost at .*test_partition.py:.*neither in the forward nor in the backward"):
        compiled(layers, "aot_eager")
    monkeypatch.undo()
    breaking(monkeypatch, done_again_in_backward)
    _, (message,) = compiled(layers, "aot_eager")
    assert "once more" in message and "Ranks that do not all split" in message


def test_what_a_setting_asks_for_is_noted(monkeypatch):
    breaking(monkeypatch, done_again_in_backward)
    with torch._functorch.config.patch(activation_memory_budget=0.9):
        graph, messages = compiled(layers, "aot_eager")
    assert not graph.findings and not messages
    assert any("activation_memory_budget has the backward graph communicate again" in note for note in graph.notes)


def test_with_a_joint_pass_of_the_users_a_loss_is_a_warning(monkeypatch):
    breaking(monkeypatch, lost_in_forward)
    with torch._inductor.config.patch(joint_custom_pre_pass=lambda graph: None):
        graph, (message,) = compiled(layers, "aot_eager")
    assert [(f.rule, f.severity) for f in graph.findings] == [
        ("lost", "warning")
    ] and "joint_custom_pre_pass" in message


def test_the_loss_of_what_only_a_wait_keeps_alive_is_noted(monkeypatch):
    def drop(forward, backward):
        unused = next(n for n in forward.graph.nodes if collectives.is_wait(n) and not n.users)
        (start,) = unused.args
        forward.graph.erase_node(unused)
        forward.graph.erase_node(start)

    def program(x, w):
        reduced(w.detach() * 2, "max")
        return layer(x, w)

    breaking(monkeypatch, drop)
    graph, messages = compiled(program, "aot_eager")
    assert not graph.findings and not messages
    assert any("drops a collective whose result nothing uses" in note for note in graph.notes)


# ------------------------------------------------------------------------------------------------------- comparison
def test_what_is_dead_in_the_joint_graph_counts_for_nothing():
    def program(x):
        c10d.all_reduce(x * 2, "sum", "0").sin()
        reduced(x * 3)
        used = c10d.all_reduce(x * 4, "sum", "0")
        c10d.wait_tensor(used)
        return used + 1

    gm = make_fx(program, tracing_mode="fake")(torch.ones(4, 4))
    assert [(act.signature[:10], act.needed) for act in acts(gm)] == [("all_reduce", False), ("all_reduce", True)]


def act(name, what="sum", value=None, asked=False):
    return Act(name, what, name if value is None else value, True, asked, None)


def test_names_tell_collectives_of_one_kind_apart():
    a, b = act("a"), act("b")
    assert compare([a, b], [a], [b]).lost == compare([a, b], [a], [b]).again == []
    split = compare([a, b], [a], [a])
    assert split.lost == [b] and split.again == [(a, False)]
    assert compare([a, b], [], [b]).lost == [a]


def test_what_was_renamed_is_matched_by_what_it_does():
    assert compare([act("a")], [act("other")], []).lost == []
    assert compare([act("a")], [act("a", "max")], []).lost == [act("a")]


def test_one_of_several_equal_ones_is_enough():
    assert compare([act("a", value=1), act("b", value=1)], [act("a")], []).lost == []
    assert compare([act("a", value=1), act("b", value=2)], [act("a")], []).lost == [act("b", value=2)]


def test_only_what_was_asked_for_is_asked_for():
    joint = [act("a", asked=True), act("b")]
    assert compare(joint, joint, joint).again == [(joint[0], True), (joint[1], False)]
