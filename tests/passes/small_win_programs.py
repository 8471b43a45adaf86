"""Programs with a collective more than they need, and what each pass has to make of it."""

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol

c10d = torch.ops._c10d_functional


def name():
    return dist.group.WORLD.group_name


def part(x, dim=0):
    """This rank's part."""
    return x.chunk(dist.get_world_size(), dim)[dist.get_rank()]


# ------------------------------------------------------------------------------------------------------------- waits
def waited_twice(x):
    reduced = c10d.all_reduce(x * 2, "sum", name())
    first = c10d.wait_tensor(reduced)
    return first.sin() + c10d.wait_tensor(reduced).cos()


def wait_of_a_wait(x):
    reduced = c10d.wait_tensor(c10d.wait_tensor(c10d.all_gather_into_tensor(x * 2, dist.get_world_size(), name())))
    return c10d.wait_tensor(reduced.view(-1)) + 1


# --------------------------------------------------------------------------------------------------- equal collectives
def reduced_twice(x):
    y = x * 2
    a = funcol.all_reduce(y, "sum", dist.group.WORLD)
    b = funcol.all_reduce(y, "sum", dist.group.WORLD)
    return a.sin() + b.cos()


def gathered_twice_crossed(x):
    """The second wait comes first."""
    y = x * 2
    a = c10d.all_gather_into_tensor(y, dist.get_world_size(), name())
    b = c10d.wait_tensor(c10d.all_gather_into_tensor(y, dist.get_world_size(), name())).cos()
    return b + c10d.wait_tensor(a).sin()


def reduced_differently(x):
    y = x * 2
    return funcol.all_reduce(y, "sum", dist.group.WORLD) + funcol.all_reduce(y, "max", dist.group.WORLD)


def changed_in_between(x):
    a = funcol.all_reduce(x, "sum", dist.group.WORLD).sin()
    x.add_(1)
    return a + funcol.all_reduce(x, "sum", dist.group.WORLD)


def both_returned(x):
    y = x * 2
    return funcol.all_reduce(y, "sum", dist.group.WORLD), funcol.all_reduce(y, "sum", dist.group.WORLD)


def used_up_before(x):
    y = x * 2
    a = funcol.all_reduce(y, "sum", dist.group.WORLD).sum(0)
    y.relu()
    return (a + x).exp() + funcol.all_reduce(y, "sum", dist.group.WORLD)


# ----------------------------------------------------------------------------------------------------------- unused
def ignored(x):
    y = x * 2
    funcol.all_reduce(y, "sum", dist.group.WORLD)
    return y + 1


def ignored_after_use(x):
    y = funcol.all_gather_tensor(x * 2, 0, dist.group.WORLD)
    funcol.all_reduce(y, "sum", dist.group.WORLD)
    return y + 1


# ------------------------------------------------------------------------------------------------------------- parts
def own_rows(x):
    return part(funcol.all_reduce(x * 2, "sum", dist.group.WORLD)) * 3


def own_rows_by_slice(x):
    size = x.shape[0] // dist.get_world_size()
    total = funcol.all_reduce(x * 2, "sum", dist.group.WORLD)
    mine = total[dist.get_rank() * size :][:size] if dist.get_rank() == 0 else total[-size:]
    return mine.sin() + mine


def own_positions(x):
    """Batch of one: the sequence is the second dimension."""
    return part(funcol.all_reduce(x.unsqueeze(0) * 2, "sum", dist.group.WORLD), 1) * 3


def own_columns(x):
    return part(funcol.all_reduce(x * 2, "sum", dist.group.WORLD), 1) * 3


def own_rows_and_all(x):
    total = funcol.all_reduce(x * 2, "sum", dist.group.WORLD)
    return part(total) * 3, total.sum()


def others_rows(x):
    return funcol.all_reduce(x * 2, "sum", dist.group.WORLD).chunk(2)[1 - dist.get_rank()] * 3


def scattered_and_gathered(x):
    total = funcol.all_reduce(x * 2, "sum", dist.group.WORLD)
    return funcol.all_gather_tensor(part(total).contiguous(), 0, dist.group.WORLD) * 3


def scattered_from_own(x):
    """What is cut differs between the ranks."""
    return funcol.all_gather_tensor(part(x * 2).contiguous(), 0, dist.group.WORLD) * 3
