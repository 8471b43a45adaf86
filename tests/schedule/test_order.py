"""The list scheduler on plain data: orders are valid, within memory, and never worse than the one given."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tp_compile_pass.schedule import order
from tp_compile_pass.schedule.problem import Buffer, Problem, Task, flaws, peak_bytes, simulate

SECONDS = st.sampled_from([0.0, 0.5, 1.0, 3.0])


@st.composite
def problems(draw):
    """A program in a valid order: kernels, collectives on two groups, their waits, blocking ones and walls."""
    tasks, buffers, open_starts = [], [], []
    for index in range(draw(st.integers(0, 40))):
        kind = draw(st.sampled_from(["compute"] * 5 + ["start"] * 2 + ["wait"] * 3 + ["blocking", "wall"]))
        after = set(draw(st.lists(st.integers(0, index - 1), max_size=3))) if index else set()
        waits_for = ()
        if kind == "wait":
            if not open_starts:
                continue
            waits_for = (open_starts.pop(draw(st.integers(0, len(open_starts) - 1))),)
            after |= set(waits_for)
        here = len(tasks)
        after = tuple(sorted(i for i in after if i < here))
        queue = draw(st.sampled_from(["tp", "dp"])) if kind in ("start", "blocking") else ""
        transfer = draw(SECONDS) if queue else 0.0
        tasks.append(
            Task(f"t{here}", kind, after, draw(SECONDS) if kind == "compute" else 0.0, queue, transfer, waits_for)
        )
        if kind == "start":
            open_starts.append(here)
    readers = {i: tuple(j for j, task in enumerate(tasks) if i in task.after) for i in range(len(tasks))}
    for index in range(len(tasks)):
        buffers.append(Buffer(draw(st.integers(0, 4)), index, readers[index], draw(st.booleans())))
    for _ in range(draw(st.integers(0, 3))):
        users = tuple(draw(st.lists(st.integers(0, len(tasks) - 1), max_size=3))) if tasks else ()
        buffers.append(Buffer(draw(st.integers(0, 4)), -1, users, draw(st.booleans())))
    return Problem(tasks, buffers)


@settings(max_examples=400, deadline=None)
@given(problems(), st.sampled_from([0.0, 0.05, 0.5, 10.0]), st.sampled_from([1.0, 3.0]))
def test_every_order_is_valid_and_never_worse(problem, slack, caution):
    assert not list(flaws(problem, problem.given))
    found = order.plan(problem, slack, caution)
    assert not list(flaws(problem, found.order))
    assert found.after == simulate(problem, found.order)
    assert found.before == simulate(problem, problem.given)
    assert found.after.exposed <= found.before.exposed
    assert found.after.total <= found.before.total + 1e-9
    assert found.after.peak <= (1 + slack) * found.before.peak
    assert simulate(problem, found.order, caution).exposed <= simulate(problem, problem.given, caution).exposed
    assert order.plan(problem, slack, caution).order == found.order


@settings(max_examples=200, deadline=None)
@given(problems())
def test_the_peak_is_that_of_a_plain_count(problem):
    alive = {i for i, b in enumerate(problem.buffers) if b.producer < 0}
    highest = sum(problem.buffers[i].bytes for i in alive)
    left = {i: set(b.users) | ({b.producer} - {-1}) for i, b in enumerate(problem.buffers)}
    alive -= {i for i in alive if not left[i] and not problem.buffers[i].kept}
    for index in problem.given:
        alive |= {i for i, b in enumerate(problem.buffers) if b.producer == index}
        highest = max(highest, sum(problem.buffers[i].bytes for i in alive))
        for users in left.values():
            users.discard(index)
        alive -= {i for i in alive if not left[i] and not problem.buffers[i].kept}
    assert peak_bytes(problem, problem.given) == highest


def names(problem, found):
    return [problem.tasks[i].name for i in found.order]


def reduce(tasks, name, needs, transfer=1.0, queue="tp"):
    """Appends a collective and, at once, its wait; returns the wait."""
    tasks.append(Task(name, "start", needs, queue=queue, transfer=transfer))
    start = len(tasks) - 1
    tasks.append(Task(f"wait {name}", "wait", (start,), waits_for=(start,)))
    return start + 1


def kernel(tasks, name, *needs, seconds=1.0):
    tasks.append(Task(name, after=needs, seconds=seconds))
    return len(tasks) - 1


def backward(layers, weight_first):
    """The backward pass of column-parallel layers: each input gradient is reduced beside the weight gradient."""
    tasks, needs = [], ()
    for layer in range(layers):
        if weight_first:
            kernel(tasks, f"weight{layer}", *needs)
        grad = kernel(tasks, f"input{layer}", *needs)
        wait = reduce(tasks, f"reduce{layer}", (grad,), transfer=0.9)
        if not weight_first:
            kernel(tasks, f"weight{layer}", *needs)
        needs = (wait,)
    return Problem(tasks)


@pytest.mark.parametrize("weight_first", [False, True])
def test_weight_gradients_run_behind_the_reduction_of_input_gradients(weight_first):
    problem = backward(3, weight_first)
    found = order.plan(problem, 0.05)
    assert found.before.exposed == pytest.approx(2.7)
    assert found.after.exposed == 0
    layer = ["input{0}", "reduce{0}", "weight{0}", "wait reduce{0}"]
    assert names(problem, found) == [step.format(i) for i in range(3) for step in layer]


def halves(layers, parts, depth_first):
    """Two halves of a batch, each through `layers` layers that end in a reduction."""
    tasks = []
    last = dict.fromkeys(range(parts), ())
    walk = itertools.product(range(parts), range(layers))
    for part, layer in walk if depth_first else sorted(walk, key=lambda step: step[1]):
        matmul = kernel(tasks, f"{part}.{layer}", *last[part])
        last[part] = (reduce(tasks, f"r{part}.{layer}", (matmul,), transfer=0.8),)
    return Problem(tasks)


def test_halves_run_behind_each_others_reductions():
    found = order.plan(halves(4, 2, depth_first=False), 0.05)
    assert found.before.exposed == pytest.approx(6.4)
    assert found.after.exposed == pytest.approx(0.8)  # the last reduction has nothing left to hide behind


def test_a_chain_stays_as_it_is():
    tasks, needs = [], ()
    for layer in range(5):
        needs = (reduce(tasks, f"r{layer}", (kernel(tasks, f"k{layer}", *needs),)),)
    problem = Problem(tasks)
    found = order.plan(problem, 0.05)
    assert found.order == problem.given and found.after is found.before


def test_memory_bounds_what_is_put_off():
    """Weight gradients free much memory: putting one off would go beyond the bound."""
    tasks, buffers, needs = [], [], ()
    for _ in range(4):
        weight = kernel(tasks, "weight", *needs)
        grad = kernel(tasks, "input", *needs)
        buffers += [Buffer(100, weight, (), True), Buffer(150, grad, (grad + 1, grad + 2)), Buffer(100, -1, (weight,))]
        needs = (reduce(tasks, "r", (grad,)),)
    problem = Problem(tasks, buffers)
    tight, loose = order.plan(problem, 0.0), order.plan(problem, 1.0)
    assert tight.after.peak <= tight.before.peak < loose.after.peak
    assert loose.after.exposed < tight.after.exposed


def test_slow_transfers_are_allowed_for():
    """Three kernels could fill the gap; by the figures one is enough, and they may be three times too low."""
    tasks = []
    wait = reduce(tasks, "r", (kernel(tasks, "first"),))
    for name in "abc":
        kernel(tasks, name)
    kernel(tasks, "second", wait)
    problem = Problem(tasks)
    assert names(problem, order.plan(problem, 0.05, caution=3))[-2:] == ["wait r", "second"]


def test_a_collective_does_not_pass_one_of_another_group():
    tasks = []
    reduce(tasks, "late", (kernel(tasks, "a", seconds=5.0),), queue="tp")
    reduce(tasks, "early", (), queue="dp")
    problem = Problem(tasks)
    found = order.plan(problem, 1.0)
    assert names(problem, found).index("late") < names(problem, found).index("early")


def test_flaws_are_found():
    tasks = [Task("a"), Task("s", "start", queue="q"), Task("w", "wait", (1,), waits_for=(1,)), Task("s2", "start")]
    problem = Problem([*tasks, Task("wall", "wall"), Task("b")])
    assert "permutation" in next(flaws(problem, [0, 1]))
    assert "before s" in next(flaws(problem, [0, 2, 1, 3, 4, 5]))
    assert "another order" in next(flaws(problem, [0, 3, 1, 2, 4, 5]))
    assert "past wall" in next(flaws(problem, [0, 1, 2, 3, 5, 4]))
    assert not list(flaws(problem, [1, 0, 2, 3, 4, 5]))


@pytest.mark.parametrize("size", [1_000, 16_000])
def test_work_grows_with_the_program(size, monkeypatch):
    """Tasks looked at per task, counted instead of timed: near-linear."""
    problem = backward(size // 4, weight_first=True)
    picks = itertools.count()
    original = order._List._compute
    monkeypatch.setattr(order._List, "_compute", lambda self: (next(picks), original(self))[1])
    order.plan(problem, 0.05)
    assert next(picks) <= len(order.WINDOWS) * size


def test_a_short_move_is_found_where_a_long_one_takes_too_much_memory(monkeypatch):
    """Two matrices a layer: only the second one's gradient can be put off without keeping more."""
    tasks, buffers, needs = [], [Buffer(4, -1, (0, 1))], ()
    for layer in range(2):
        hidden = kernel(tasks, f"hidden{layer}", *needs)
        first = kernel(tasks, f"first{layer}", *needs)
        masked = kernel(tasks, f"masked{layer}", hidden)
        second = kernel(tasks, f"second{layer}", masked)
        grad = kernel(tasks, f"grad{layer}", masked)
        wait = reduce(tasks, f"reduce{layer}", (grad,), transfer=0.9)
        readers = (wait, *((wait + 1, wait + 2) if not layer else ()))
        buffers += [Buffer(4, hidden, (masked,)), Buffer(4, masked, (second, grad)), Buffer(4, grad, readers)]
        buffers += [Buffer(1, first, (), kept=True), Buffer(1, second, (), kept=True)]
        needs = (wait,)
    problem = Problem(tasks, buffers)
    found = order.plan(problem, 0.0)
    assert found.before.exposed == pytest.approx(1.8)
    assert found.after.exposed == 0 and found.after.peak == found.before.peak
    monkeypatch.setattr(order, "WINDOWS", tuple(window for window in order.WINDOWS if window in (0, 16, 128, None)))
    assert order.plan(problem, 0.0).after.exposed > 0
