"""Random edits of a traced graph: legal ones, which no rule may reject, and illegal ones, each of which some rule must
catch. An edit returns False where the graph has no place for it."""

from __future__ import annotations

from itertools import pairwise

import torch

from tp_compile_pass.ir import collectives

aten = torch.ops.aten
c10d = torch.ops._c10d_functional
VIEWS = ("aten.view", "aten.t.", "aten._unsafe_view", "aten.slice", "aten.alias")


def starts(gm):
    return [n for n in gm.graph.nodes if collectives.collective_op(n)]


def waits(gm):
    return [n for n in gm.graph.nodes if collectives.is_wait(n)]


def pick(items, number):
    return items[number % len(items)] if items else None


def start_of(wait):
    return wait.args[0]


# ----------------------------------------------------------------------------------------------------------- legal
def reorder(gm, random):
    """Any order of the nodes that respects data, the order of collectives, and readers of a waited result."""
    nodes = list(gm.graph.nodes)
    after = {n: set(n.all_input_nodes) for n in nodes}
    chain = starts(gm)
    for earlier, later in pairwise(chain):
        after[later].add(earlier)
    position = {n: i for i, n in enumerate(nodes)}
    for wait in waits(gm):
        for reader in _readers(start_of(wait)):
            if reader is not wait and position[reader] > position[wait]:
                after[reader].add(wait)
    free = [n for n in nodes if n.op not in ("placeholder", "output")]
    done = {n for n in nodes if n.op == "placeholder"}
    last = [n for n in nodes if n.op == "placeholder"][-1]
    while free:
        ready = [n for n in free if after[n] <= done]
        chosen = random.choice(ready)
        last.append(chosen)
        last = chosen
        done.add(chosen)
        free.remove(chosen)
    return True


def _readers(node):
    """The users of a result and of its views."""
    found, todo = [], [node]
    while todo:
        for user in todo.pop().users:
            if user not in found and not collectives.is_wait(user):
                found.append(user)
                if str(user.target).startswith(
                    ("aten.view", "aten.t.", "aten._unsafe_view", "aten.slice", "aten.alias")
                ):
                    todo.append(user)
    return found


def clone_an_operand(gm, random):
    start = pick(starts(gm), random.randrange(99))
    if start is None:
        return False
    operand = start.args[0]
    with gm.graph.inserting_before(start):
        copy = gm.graph.call_function(aten.clone.default, (operand,))
    copy.meta["val"] = operand.meta["val"]
    start.replace_input_with(operand, copy)
    return True


def compute_beside(gm, random):
    """A new reader of something that no collective has in flight."""
    wait = pick(waits(gm), random.randrange(99))
    if wait is None:
        return False
    with gm.graph.inserting_after(wait):
        gm.graph.call_function(aten.neg.default, (wait,)).meta["val"] = wait.meta["val"]
    return True


def size_of_what_is_in_flight(gm, random):
    start = pick(starts(gm), random.randrange(99))
    if start is None:
        return False
    with gm.graph.inserting_after(start):
        gm.graph.call_function(aten.empty_like.default, (start,)).meta["val"] = start.meta["val"]
    return True


def recreate_a_wait(gm, random):
    wait = pick(waits(gm), random.randrange(99))
    if wait is None:
        return False
    with gm.graph.inserting_after(wait):
        new = gm.graph.call_function(c10d.wait_tensor.default, wait.args)
    new.meta = dict(wait.meta)
    wait.replace_all_uses_with(new)
    gm.graph.erase_node(wait)
    return True


LEGAL = (reorder, clone_an_operand, compute_beside, size_of_what_is_in_flight, recreate_a_wait)


# --------------------------------------------------------------------------------------------------------- illegal
def _awaited(gm):
    return [w for w in waits(gm) if w.users]


def drop_a_wait(gm, random):
    wait = pick(waits(gm), random.randrange(99))
    if wait is None:
        return False
    wait.replace_all_uses_with(start_of(wait))
    gm.graph.erase_node(wait)
    return True


def read_before_the_wait(gm, random):
    wait = pick(waits(gm), random.randrange(99))
    if wait is None:
        return False
    with gm.graph.inserting_before(wait):
        view = gm.graph.call_function(aten.view.default, (start_of(wait), [-1]))
        view.meta["val"] = start_of(wait).meta["val"].reshape(-1)
        gm.graph.call_function(aten.sin.default, (view,)).meta["val"] = view.meta["val"]
    return True


def write_before_the_wait(gm, random):
    wait = pick(waits(gm), random.randrange(99))
    if wait is None:
        return False
    with gm.graph.inserting_before(wait):
        view = gm.graph.call_function(aten.t.default, (start_of(wait),))
        view.meta["val"] = start_of(wait).meta["val"].t()
        gm.graph.call_function(aten.zero_.default, (view,)).meta["val"] = view.meta["val"]
    return True


def overwrite_what_is_sent(gm, random):
    held = [w for w in waits(gm) if (row := collectives.collective_op(start_of(w))) and row.holds]
    wait = pick(held, random.randrange(99))
    if wait is None:
        return False
    operand = start_of(wait).args[0]
    with gm.graph.inserting_before(wait):
        gm.graph.call_function(aten.mul_.Tensor, (operand, 2)).meta["val"] = operand.meta["val"]
    return True


def swap_two(gm, random):
    """Moves a collective, with all that it needs, before the one that precedes it."""
    chain = starts(gm)
    pairs = [(a, b) for a, b in pairwise(chain) if a not in _needs(b)]
    pair = pick(pairs, random.randrange(99))
    if pair is None:
        return False
    first, second = pair
    needs = _needs(second)
    for node in [n for n in gm.graph.nodes if n in needs]:
        if node.op not in ("placeholder", "get_attr") and not node < first:
            first.prepend(node)
    first.prepend(second)
    return True


def _needs(node):
    found, todo = set(), [node]
    while todo:
        for source in todo.pop().all_input_nodes:
            if source not in found:
                found.add(source)
                todo.append(source)
    return found


def other_group(gm, random):
    return _argument(gm, random, "group_name", "another")


def other_reduction(gm, random):
    return _argument(gm, random, "reduce_op", "product")


def other_root(gm, random):
    return _argument(gm, random, "src", 1)


def _argument(gm, random, name, value):
    able = [n for n in starts(gm) if collectives.argument(n, name) not in (None, value)]
    start = pick(able, random.randrange(99))
    if start is None:
        return False
    place = [a.name for a in start.target._schema.arguments].index(name)
    start.args = (*start.args[:place], value, *start.args[place + 1 :])
    return True


def lose_one(gm, random):
    same = [w for w in waits(gm) if start_of(w).meta["val"].shape == start_of(w).args[0].meta["val"].shape]
    wait = pick(same, random.randrange(99))
    if wait is None:
        return False
    start = start_of(wait)
    wait.replace_all_uses_with(start.args[0])
    gm.graph.erase_node(wait)
    start.replace_all_uses_with(start.args[0])
    gm.graph.erase_node(start)
    return True


def do_one_twice(gm, random):
    start = pick(starts(gm), random.randrange(99))
    if start is None:
        return False
    with gm.graph.inserting_after(start):
        again = gm.graph.call_function(start.target, start.args)
    again.meta = dict(start.meta)
    with gm.graph.inserting_after(again):
        gm.graph.call_function(c10d.wait_tensor.default, (again,)).meta = dict(start.meta)
    return True


def wait_twice(gm, random):
    wait = pick(waits(gm), random.randrange(99))
    if wait is None:
        return False
    with gm.graph.inserting_after(wait):
        gm.graph.call_function(c10d.wait_tensor.default, (wait,)).meta = dict(wait.meta)
    return True


def send_another_tensor(gm, random):
    """Of another size than the result says."""
    start = pick(starts(gm), random.randrange(99))
    if start is None:
        return False
    operand = start.args[0]
    with gm.graph.inserting_before(start):
        part = gm.graph.call_function(aten.slice.Tensor, (operand, 0, 0, 2))
    part.meta["val"] = operand.meta["val"][:2]
    start.replace_input_with(operand, part)
    return True


def record_another_dtype(gm, random):
    able = [n for n in starts(gm) if "all_to_all" not in str(n.target)]
    start = pick(able, random.randrange(99))
    if start is None:
        return False
    start.meta["val"] = start.meta["val"].double()
    return True


ILLEGAL = (
    *(drop_a_wait, read_before_the_wait, write_before_the_wait, overwrite_what_is_sent, swap_two, other_group),
    *(other_reduction, other_root, lose_one, do_one_twice, wait_twice, send_another_tensor, record_another_dtype),
)
