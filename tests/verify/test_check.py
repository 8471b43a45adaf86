"""The verifier at work: what it says about a user's program, and what happens to a pass that breaks a graph."""

import warnings

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
from torch.utils.checkpoint import checkpoint
from valid_graphs import body, c10d, calls, nested, reduce, traced, two_groups

from tp_compile_pass import TPOptions, explain
from tp_compile_pass.failsafe import TPInternalError, TPInternalWarning
from tp_compile_pass.passes.base import PassContext
from tp_compile_pass.passes.pipeline import run_passes
from tp_compile_pass.report.record import GraphReport, PassResult, Place


# ----------------------------------------------------------------------------------------- programs of users, 2 ranks
def group():
    return dist.group.WORLD.group_name


def functional(x):
    return funcol.all_reduce(x * 2, "sum", dist.group.WORLD) + 1


def result_ignored(x):
    out = c10d.all_reduce(x * 2, "sum", group())
    c10d.wait_tensor(out)
    return out.view(-1) + 1


def waited_twice(x):
    out = c10d.wait_tensor(c10d.all_reduce(x * 2, "sum", group()))
    return c10d.wait_tensor(out) + 1


def synchronous(x):
    y = x * 2
    dist.all_reduce(y)
    out = torch.empty(2 * x.shape[0], x.shape[1])
    dist.all_gather_into_tensor(out, y)
    return out + 1


def input_in_place(x):
    dist.all_reduce(x)
    return x + 1


def sizes_in_flight(x):
    out = c10d.all_reduce(x * 2, "sum", group())
    zeros = torch.zeros_like(out)
    c10d.wait_tensor(out)
    return out + zeros + out.shape[0]


def checkpointed(x):
    return checkpoint(lambda y: funcol.all_reduce(y.sin(), "sum", dist.group.WORLD) * 2, x, use_reentrant=False)


def input_changed_after_the_wait(x):
    out = c10d.wait_tensor(c10d.all_gather_into_tensor(x, 2, group()))
    x.add_(1)
    return out


class Megatron(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        y = x * 2
        dist.all_reduce(y)
        return y

    @staticmethod
    def backward(ctx, grad):
        grad = grad.clone()
        dist.all_reduce(grad)
        return grad * 2


def autograd_function(x):
    return Megatron.apply(x).sin()


RIGHT = [functional, result_ignored, waited_twice, synchronous, input_in_place, sizes_in_flight]
RIGHT += [checkpointed, input_changed_after_the_wait, autograd_function]


def unwaited(x):
    out = c10d.all_reduce(x * 2, "sum", group())
    return out + 1


def read_early(x):
    out = c10d.all_reduce(x * 2, "sum", group())
    early = out.view(-1)[2:] + 1
    c10d.wait_tensor(out)
    return early


def overwritten(x):
    out = c10d.all_gather_into_tensor(x, 2, group())
    x.add_(1)
    return out


def returned_in_flight(x):
    return c10d.all_reduce(x * 2, "sum", group())


#: program → (rule, the code of the line that the finding names)
WRONG = {
    unwaited: ("unwaited-result", "return out + 1"),
    read_early: ("read-before-wait", "early = out.view(-1)[2:] + 1"),
    overwritten: ("overwrite-in-flight", "x.add_(1)"),
}


def judge(program, **options):
    """(the error, the rules found, the warnings) of compiling `program` on this rank."""
    x = torch.arange(8.0).reshape(2, 4) + dist.get_rank()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            report = explain(program, options={"tp.inner": "aot_eager", "tp.strict": True, **options})(x)
        except Exception as error:
            return str(error), [], []
    rules = [(f.rule, f.severity) for graph in report.graphs for f in graph.findings]
    return "", rules, [str(w.message) for w in caught if "tp_inductor" in str(w.message)]


def right_programs():
    for program in RIGHT:
        assert judge(program) == ("", [], []), program.__name__
        x = torch.arange(8.0).reshape(2, 4) + dist.get_rank()
        a, b = x.clone().requires_grad_(program is autograd_function), x.clone().requires_grad_()
        b = b if a.requires_grad else b.detach()
        torch._dynamo.reset()
        want, got = program(a), torch.compile(program, backend="tp_inductor", options={"tp.inner": "aot_eager"})(b)
        torch.testing.assert_close(got * 1, want * 1)
        if a.requires_grad:
            want.sum().backward()
            got.sum().backward()
            torch.testing.assert_close(b.grad, a.grad)


def wrong_programs():
    for program, (rule, code) in WRONG.items():
        error, _, _ = judge(program)
        assert rule in error and code in error and "test_check.py:" in error, (program.__name__, error)
        error, rules, messages = judge(program, **{"tp.verify": "warn"})
        assert not error and (rule, "error") in rules, (program.__name__, error, rules)
        assert any(rule in message for message in messages)
        assert judge(program, **{"tp.verify": "off"}) == ("", [], [])
    dist.barrier()


def handle_returned(x):
    y = x * 2
    return y, dist.all_reduce(y, async_op=True)


def in_flight_at_the_end():
    assert judge(handle_returned) == ("", [], [])  # a handle waits wherever it goes
    error, rules, messages = judge(returned_in_flight)
    assert not error and rules == [("leaves-in-flight", "warning")] and len(messages) == 1
    dist.barrier()


@pytest.mark.matrix
def test_what_is_right_compiles_without_a_word(ranks2):
    ranks2.run(right_programs)


@pytest.mark.matrix
def test_what_is_wrong_is_reported_with_its_line(ranks2):
    ranks2.run(wrong_programs)


@pytest.mark.matrix
def test_a_result_that_leaves_in_flight_is_a_warning(ranks2):
    ranks2.run(in_flight_at_the_end)


# ----------------------------------------------------------------------------------------------- passes that are wrong
class Breaks:
    """A pass that applies `edit` to the graph."""

    name = "breaks"

    def __init__(self, edit):
        self.edit = edit

    def apply(self, gm, context):
        for module in (gm, *(m for m in gm.children() if isinstance(m, torch.fx.GraphModule))):
            context.before_edit(module)
        self.edit(gm)
        return PassResult(self.name, [Place("x", "edit", None)])


def drop_a_wait(gm):
    (wait, *_) = calls(gm, c10d.wait_tensor.default)
    wait.replace_all_uses_with(wait.args[0])
    gm.graph.erase_node(wait)


def drop_a_nested_wait(gm):
    drop_a_wait(gm.body)


def change_a_group(gm):
    node = calls(gm, c10d.all_reduce.default)[0]
    node.args = (*node.args[:2], "dp")


def nothing(gm):
    pass


def run(gm, edit, **options):
    report = GraphReport("", "inductor", {})
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        run_passes((Breaks(edit),), gm, PassContext(TPOptions(**options), "captured"), report)
    return report, [w.category for w in caught]


@pytest.mark.parametrize(
    ("make", "edit", "rule"),
    [
        (lambda: traced(two_groups), drop_a_wait, "wait-lost"),
        (lambda: traced(two_groups), change_a_group, "changed"),
        (lambda: nested(body(reduce), 2), drop_a_nested_wait, "wait-lost"),
    ],
)
@pytest.mark.parametrize("mode", ["error", "warn"])
def test_a_pass_that_breaks_a_rule_is_undone_and_named(make, edit, rule, mode):
    gm = make()
    before = [str(m.graph) for m in gm.modules() if isinstance(m, torch.fx.GraphModule)]
    report, categories = run(gm, edit, verify=mode)
    assert categories == [TPInternalWarning]
    assert "pass breaks failed (BrokenByPass: " in report.warnings[0] and rule in report.warnings[0]
    assert [str(m.graph) for m in gm.modules() if isinstance(m, torch.fx.GraphModule)] == before
    assert not report.rewrites
    with pytest.raises(TPInternalError, match=rule):
        run(make(), edit, strict=True, verify=mode)


def test_a_pass_that_keeps_the_rules_stays():
    report, categories = run(traced(two_groups), nothing)
    assert len(report.rewrites) == 1 and not categories


def test_off_looks_at_nothing():
    gm = traced(two_groups)
    report, categories = run(gm, drop_a_wait, verify="off")
    assert len(report.rewrites) == 1 and not categories


def test_what_the_program_broke_before_is_not_blamed_on_a_pass():
    gm = traced(two_groups)
    drop_a_wait(gm)
    report, categories = run(gm, nothing)
    assert len(report.rewrites) == 1 and not categories


def test_a_broken_verifier_fails_closed(monkeypatch):
    monkeypatch.setattr("tp_compile_pass.verify.check.trace", lambda gm: 1 / 0)
    report, categories = run(traced(two_groups), nothing)
    assert categories == [TPInternalWarning] and "verifying the captured graph failed" in report.warnings[0]
    assert len(report.rewrites) == 1
