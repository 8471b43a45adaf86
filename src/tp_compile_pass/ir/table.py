"""The table of communication ops: one row per op, under every name that torch 2.5 to 2.15 gives it.

Ops that the installed torch lacks are simply never met. `register` adds a row for a custom op of the user's, and
`declare_communication` says that an op communicates without saying how.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

#: How the result becomes usable. "wait": by `wait_tensor` on it. "inside": the op itself has waited (or runs on the
#: caller's stream), so its result is usable at once. "token": a send, whose result only says when the sent buffer may
#: be reused; nobody has to wait for it.
Waited = Literal["wait", "inside", "token"]


@dataclass(frozen=True)
class CollectiveOp:
    """A row of the table. Every `str` and `tuple[str, ...]` names arguments of the op's schema ("" and () where the op
    has none)."""

    #: The collective's name in the field.
    kind: str
    #: The argument with the process group or its name; legacy ops name their ranks instead (`ranks`).
    group: str = "group_name"
    reduce_op: str = ""
    group_size: str = ""
    #: Arguments whose data goes out to other ranks.
    reads: tuple[str, ...] = ()
    #: Arguments that receive the result; the op's own result is then the same memory.
    writes: tuple[str, ...] = ()
    #: Of `reads`, those still read after the op returned, until its result is waited for. (`all_reduce` and
    #: `broadcast` work on a private copy.)
    holds: tuple[str, ...] = ()
    waited: Waited = "wait"


def _functional(first: str, many: str) -> dict[str, CollectiveOp]:
    """The functional collectives; `first` and `many` are what a namespace calls the tensor and the list argument."""
    reduce = CollectiveOp("all_reduce", reduce_op="reduce_op", reads=(first,))
    gather = CollectiveOp("all_gather", group_size="group_size", reads=(first,), holds=(first,))
    scatter = replace(gather, kind="reduce_scatter", reduce_op="reduce_op")
    broadcast = CollectiveOp("broadcast", reads=(first,))
    return {
        "all_reduce": reduce,
        "all_reduce_": replace(reduce, writes=(first,)),
        "all_reduce_coalesced": replace(reduce, reads=(many,)),
        "all_reduce_coalesced_": replace(reduce, reads=(many,), writes=(many,)),
        "all_gather_into_tensor": gather,
        "all_gather_into_tensor_out": replace(gather, writes=("out",)),
        "all_gather_into_tensor_coalesced": replace(gather, reads=(many,), holds=(many,)),
        "reduce_scatter_tensor": scatter,
        "reduce_scatter_tensor_out": replace(scatter, writes=("out",)),
        "reduce_scatter_tensor_coalesced": replace(scatter, reads=(many,), holds=(many,)),
        "all_to_all_single": CollectiveOp("all_to_all", reads=(first,), holds=(first,)),
        "broadcast": broadcast,
        "broadcast_": replace(broadcast, writes=(first,)),
        "isend": CollectiveOp("send", reads=("tensor",), holds=("tensor",), waited="token"),
        # Not in the schema, but so in fact: a receive fills the tensor it is given and returns it.
        "irecv": CollectiveOp("recv", writes=("tensor",)),
        "batch_p2p_ops": CollectiveOp("p2p", reads=("tensors",), writes=("tensors",), holds=("tensors",)),
    }


def _legacy() -> dict[str, CollectiveOp]:
    """The ops of the namespace `c10d_functional`, which name a tag and ranks instead of a group."""
    tensor = {
        "all_reduce": "self",
        "all_reduce_coalesced": "self",
        "all_gather_into_tensor": "shard",
        "all_gather_into_tensor_coalesced": "input",
        "reduce_scatter_tensor": "input",
        "reduce_scatter_tensor_coalesced": "inputs",
        "all_to_all_single": "input",
        "broadcast": "self",
    }
    rows = {"batch_p2p_ops": _functional("", "")["batch_p2p_ops"]}
    for op, first in tensor.items():
        row = _functional(first, first)[op]
        reduce_op = "reduceOp" if row.reduce_op else ""
        rows[op] = replace(row, group="ranks", group_size="group_size", reduce_op=reduce_op)
    rows["isend"] = CollectiveOp("send", reads=("self",), holds=("self",), waited="token")
    rows["irecv"] = CollectiveOp("recv", writes=("self",))
    return rows


def _symmetric() -> dict[str, CollectiveOp]:
    """Ops over symmetric memory. All but the low-contention two run on the caller's stream."""
    reduce = CollectiveOp("all_reduce", reduce_op="reduce_op", reads=("input",), waited="inside")
    gather = CollectiveOp("all_gather", reads=("A",), waited="inside")
    scatter = CollectiveOp("reduce_scatter", reduce_op="reduce_op", reads=("A", "B"), waited="inside")
    exchange = CollectiveOp("all_to_all", reads=("input",), writes=("out",), waited="inside")
    return {
        "fused_all_gather_matmul": gather,
        "fused_all_gather_scaled_matmul": gather,
        "fused_matmul_reduce_scatter": scatter,
        "fused_scaled_matmul_reduce_scatter": scatter,
        "_low_contention_all_gather": CollectiveOp("all_gather", reads=("tensor",), holds=("tensor",)),
        "_low_contention_reduce_scatter": CollectiveOp(
            "reduce_scatter", reduce_op="reduce_op", reads=("tensor",), holds=("tensor",)
        ),
        "one_shot_all_reduce": reduce,
        "one_shot_all_reduce_out": replace(reduce, writes=("out",)),
        "one_shot_all_reduce_copy": replace(reduce, reads=("local_input",), writes=()),
        "one_shot_all_reduce_copy_out": replace(reduce, reads=("local_input",), writes=("out",)),
        "two_shot_all_reduce_": replace(reduce, writes=("input",)),
        "two_shot_all_reduce_out": replace(reduce, writes=("input", "output")),
        "multimem_all_reduce_": replace(reduce, writes=("input",)),
        "multimem_one_shot_all_reduce": reduce,
        "multimem_one_shot_all_reduce_out": replace(reduce, writes=("out",)),
        "multimem_all_gather_out": replace(gather, reads=("input",), writes=("out",)),
        "reduce_scatter_out": CollectiveOp(
            "reduce_scatter", reads=("input",), writes=("input", "output"), waited="inside"
        ),
        "all_to_all_vdev": exchange,
        "all_to_all_vdev_2d": exchange,
        "nvshmem_all_to_all": exchange,
        "nvshmem_broadcast": CollectiveOp("broadcast", reads=("input",), writes=("input",), waited="inside"),
    }


def _rows() -> dict[str, CollectiveOp]:
    spaces = {
        "_c10d_functional": _functional("input", "inputs"),
        "_c10d_functional_autograd": _functional("input", "inputs"),
        "c10d_functional": _legacy(),
        "symm_mem": _symmetric(),
        "_dtensor": {"shard_dim_alltoall": CollectiveOp("all_to_all", reads=("input",), waited="inside")},
    }
    return {f"{space}::{op}": row for space, ops in spaces.items() for op, row in ops.items()}


#: "namespace::op" → its row.
ROWS: dict[str, CollectiveOp] = _rows()

#: Ops that wait, by name; each waits for what its first argument (a tensor or a list) is the result of.
WAITS = frozenset(
    {
        "_c10d_functional::wait_tensor",
        "_c10d_functional::wait_tensors",
        "c10d_functional::wait_tensor",
        # Outside of tracing it makes a tensor that waits by itself; inside a graph it is a wait.
        "_c10d_functional::_wrap_tensor_autograd",
    }
)

#: Namespaces whose every op communicates unless the table says otherwise below.
COMMUNICATING_NAMESPACES = frozenset(
    {"c10d", "symm_mem", "c10d_functional", "_c10d_functional", "_c10d_functional_autograd"}
)
#: Ops of these namespaces that do not.
LOCAL = frozenset({"c10d::check_for_nan", "symm_mem::memset32_", "symm_mem::_async_input_mm"})
#: Schema arguments that hold a process group: an op with one of them is taken to communicate.
GROUP_ARGUMENTS = frozenset({"group_name", "group", "process_group", "pg", "pg_name"})

_declared: set[str] = set()


def register(op: str, row: CollectiveOp) -> None:
    """Tells the table about a custom op, "namespace::name", so that it is verified as any other collective is."""
    ROWS[op] = row


def declare_communication(*ops: str) -> None:
    """Says that these ops ("namespace::name") communicate. Nothing is moved past them."""
    _declared.update(ops)


def declared(op: str) -> bool:
    """Whether the user declared `op` as communication."""
    return op in _declared
