"""Uses of a tensor between the start of its collective and `Work.wait()`: warned about, and nothing else is."""

import warnings

import pytest
import torch
import torch.distributed as dist

from tp_compile_pass import reports

pytestmark = pytest.mark.matrix


def never_waited(x):
    t = x * 2
    dist.all_reduce(t, async_op=True)
    return t + 1


def read(x):
    t = x * 2
    work = dist.all_reduce(t, async_op=True)
    y = t + 1
    work.wait()
    return y


def read_through_a_view(x):
    t = x * 2
    row = t.view(-1)[3:9]
    work = dist.all_reduce(t, async_op=True)
    y = row.sin()
    work.wait()
    return y + t.sum()


def read_a_gathered_part(x):
    out = x.new_zeros(8, 6)
    work = dist.all_gather_into_tensor(out, x, async_op=True)
    y = out[1] * 2
    work.wait()
    return y


def written(x):
    t = x * 2
    work = dist.all_reduce(t, async_op=True)
    t.add_(1)
    work.wait()
    return t


def item_written(x):
    t = x * 2
    work = dist.all_reduce(t, async_op=True)
    t[0] = 1
    work.wait()
    return t


def out_argument_written(x):
    t, y = x * 2, x + 1
    work = dist.all_reduce(t, async_op=True)
    torch.mul(y, 2, out=t)
    work.wait()
    return t


def sent_is_overwritten(x):
    t, out = x * 2, x.new_empty(8, 6)
    work = dist.all_gather_into_tensor(out, t, async_op=True)
    t.zero_()
    work.wait()
    return out


def fine(x):
    t, out = x * 2, x.new_zeros(8, 6)
    works = [dist.all_gather_into_tensor(out, t, async_op=True), dist.all_reduce(x[:2], async_op=True)]
    y = t.sin() + out.shape[0] + torch.zeros_like(out)[:4]
    z = x[2:] * 2
    x[2:].add_(1)
    for work in works:
        work.wait()
    t.zero_()
    return out.sum() + y, x + 1, z


def two_parts(x):
    t = x * 2
    first = dist.all_reduce(t[:2], async_op=True)
    second = dist.all_reduce(t[2:], async_op=True)
    first.wait()
    y = t[:2] * 3
    second.wait()
    return y, t


EXPECTED = {
    never_waited: ["read-before-wait"],
    read: ["read-before-wait"],
    read_through_a_view: ["read-before-wait"],
    read_a_gathered_part: ["read-before-wait"],
    written: ["write-in-flight"],
    item_written: ["write-in-flight"],
    out_argument_written: ["write-in-flight"],
    sent_is_overwritten: ["overwrite-in-flight"],
    fine: [],
    two_parts: [],
}


def found(fn, verify="error"):
    options = {"tp.inner": "aot_eager", "tp.strict": True, "tp.verify": verify}
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        torch.compile(fn, backend="tp_inductor", fullgraph=True, options=options)(torch.ones(4, 6))
    (graph,) = reports()[-1].graphs
    said = [str(w.message) for w in seen if "before its Work is waited for" in str(w.message)]
    return [(f.rule, f.line.function, f.message) for f in graph.findings], said


@pytest.mark.parametrize("fn", EXPECTED, ids=lambda fn: fn.__name__)
def test_what_comes_too_early(ranks2, fn):
    for findings, said in ranks2.run(found, fn):
        assert [rule for rule, _, _ in findings] == EXPECTED[fn], findings
        assert {function for _, function, _ in findings} <= {fn.__name__}
        assert len(said) == len(findings)
        for _, _, message in findings:  # names the line that started the collective
            assert "async_op=True" in message


def test_nothing_is_looked_at_when_off(ranks2):
    assert ranks2.run(found, written, "off") == [([], [])] * 2
