"""Which nodes of one graph share memory with a given one."""

from __future__ import annotations

from collections.abc import Iterator

from torch.fx import Node

from tp_compile_pass.ir import collectives


def sharing(node: Node) -> Iterator[Node]:
    """`node` and, after it, each node whose result may lie in the same memory: waits, views, and what is not a torch
    op and could be anything."""
    seen, pending = {node}, [node]
    while pending:
        current = pending.pop()
        yield current
        for user in current.users:
            if user.op != "output" and user not in seen and _may_share(user):
                seen.add(user)
                pending.append(user)


def _may_share(node: Node) -> bool:
    schema = collectives.schema_of(node)
    if collectives.is_wait(node) or schema is None:
        return True
    return any(returned.alias_info is not None for returned in schema.returns)


def leaves(node: Node) -> bool:
    """Whether memory of `node` is an output of the graph."""
    return any(user.op == "output" for alias in sharing(node) for user in alias.users)
