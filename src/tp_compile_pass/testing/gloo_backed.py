"""A process group whose data gloo carries, and whose subclass decides when a collective runs and when it is over.

A subclass implements `_issue`, which is given every collective in one form (`Collective`), whatever c10d's bindings
call it, and returns the handle. CPU tensors only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

Tensors = list[torch.Tensor]
#: Starts the real collective from `inputs` into `outputs`, in the order of `Collective.reads` and `.writes` and
#: contiguous. Returns what to wait for, and what to call afterwards to complete the outputs. Inputs are only written
#: where they are outputs, too.
Start = Callable[[Tensors, Tensors], tuple[list[Any], Callable[[], None]]]


@dataclass
class Collective:
    """One collective of this rank: the tensors that it reads and writes (the same objects where it works in place).

    `kind` is all_reduce, reduce, broadcast, all_gather, reduce_scatter, all_to_all, gather, scatter, send, recv or
    barrier.
    """

    kind: str
    group: str
    reads: Tensors
    writes: Tensors
    start: Start

    @property
    def label(self) -> str:
        """For people: "all_reduce of (2, 3) float32 on group 0"."""
        tensors = [*self.reads, *self.writes]
        what = f" of {tuple(tensors[0].shape)} {str(tensors[0].dtype).removeprefix('torch.')}" if tensors else ""
        return f"{self.kind}{what} on group {self.group}"


class PythonWork(dist.Work):  # type: ignore[misc]
    """A handle written in Python. A subclass implements `_finish`, which blocks until the outputs hold the result, and
    `is_completed`."""

    def __init__(self, label: str, outputs: Tensors) -> None:
        super().__init__()
        self.label, self._outputs = label, outputs

    def _finish(self) -> None:
        raise NotImplementedError

    @torch.compiler.disable  # type: ignore[untyped-decorator]  # a Work of C++ breaks the graph, too
    def wait(self, timeout: timedelta | None = None) -> bool:  # type: ignore[override]
        self._finish()
        return True

    def is_success(self) -> bool:
        return self.is_completed()

    def exception(self) -> None:
        return None

    def synchronize(self) -> None:
        self.wait()

    def result(self) -> Tensors:  # type: ignore[override]
        self.wait()
        return list(self._outputs)

    def get_future(self) -> WorkFuture:  # type: ignore[override]
        return WorkFuture(self, list(self._outputs))


class WorkFuture(torch.futures.Future):  # type: ignore[misc]
    """The future of a PythonWork; completes in `wait()` and not before."""

    def __init__(self, work: PythonWork, value: Any, then: Callable[[Any], Any] | None = None) -> None:
        super().__init__()
        self._work, self._value, self._then = work, value, then

    def wait(self) -> Any:
        self._work.wait()
        if not super().done():
            self.set_result(self._then(self) if self._then else self._value)
        return super().wait()

    def done(self) -> bool:
        return self._work.is_completed()

    def value(self) -> Any:
        if not self.done():
            raise RuntimeError(f"the future of {self._work.label} has no value before wait()")
        return self.wait()

    def then(self, callback: Callable[[Any], Any]) -> WorkFuture:  # type: ignore[override]
        inner = WorkFuture(self._work, self._value, self._then)
        return WorkFuture(self._work, None, lambda _: callback(_after(inner)))


def _after(future: WorkFuture) -> WorkFuture:
    future.wait()
    return future


def _untraced(cls: Any) -> Any:
    """After a graph break torch calls a group's methods while Dynamo watches; it would trace into ours and fail."""
    for name, value in list(vars(cls).items()):
        if callable(value) and not name.startswith("__"):
            setattr(cls, name, torch.compiler.disable(value))
    return cls


_ProcessGroup: Any = dist.ProcessGroup  # c10d's stubs know neither its overloads' common form nor gloo's methods


@_untraced
class GlooBackedGroup(_ProcessGroup):  # type: ignore[misc]
    """The group. Its own gloo group, which carries the data, also answers what is not a collective."""

    NAME: str  # of the backend

    def __init__(self, store: Any, rank: int, size: int, timeout: timedelta) -> None:
        super().__init__(rank, size)
        self._gloo: Any = dist.ProcessGroupGloo(store, rank, size, timeout)
        self._register_backend(torch.device("cpu"), dist.ProcessGroup.BackendType.GLOO, self._gloo)
        if hasattr(self, "_set_default_backend"):  # torch 2.6 and later
            self._set_default_backend(dist.ProcessGroup.BackendType.GLOO)
        self._me, self._ranks = rank, size

    def _issue(self, collective: Collective) -> PythonWork:
        raise NotImplementedError

    def getBackendName(self) -> str:  # the names below are those of c10d's bindings
        return self.NAME

    def name(self) -> str:
        return self.NAME

    def allreduce(self, tensors: Tensors, opts: Any = None) -> PythonWork:
        return self._reduced("all_reduce", _list(tensors), _reduce_op(opts), keep=True)

    def allreduce_coalesced(self, tensors: Tensors, opts: Any = None) -> PythonWork:
        return self._reduced("all_reduce", _list(tensors), _reduce_op(opts), keep=True)

    def reduce(self, tensors: Tensors, opts: Any = None) -> PythonWork:
        return self._reduced("reduce", _list(tensors), _reduce_op(opts), keep=opts is None or opts.rootRank == self._me)

    def _reduced(self, kind: str, tensors: Tensors, op: Any, keep: bool) -> PythonWork:
        def start(inputs: Tensors, outputs: Tensors) -> tuple[list[Any], Callable[[], None]]:
            sums = outputs if keep else [tensor.clone() for tensor in inputs]
            _fill(sums, inputs)
            works = [self._all_reduce(tensor, op) for tensor in sums]
            return works, lambda: _fill(outputs, [self._averaged(tensor, op) for tensor in sums] if keep else [])

        return self._collective(kind, tensors, tensors if keep else [], start)

    def broadcast(self, tensors: Tensors, opts: Any = None) -> PythonWork:
        options = opts or dist.BroadcastOptions()
        tensors, mine = _list(tensors), options.rootRank == self._me

        def start(inputs: Tensors, outputs: Tensors) -> tuple[list[Any], Callable[[], None]]:
            return [self._gloo.broadcast(inputs if mine else outputs, options)], _nothing

        return self._collective("broadcast", tensors if mine else [], [] if mine else tensors, start)

    def allgather(self, outputs: list[Tensors], inputs: Tensors, opts: Any = None) -> PythonWork:
        if not isinstance(outputs[0], (list, tuple)):
            return self._gathered([list(outputs)], _list(inputs))  # type: ignore[arg-type]
        return self._gathered(outputs, _list(inputs))

    def allgather_coalesced(self, outputs: list[Tensors], inputs: Tensors, opts: Any = None) -> PythonWork:
        return self._gathered([[row[i] for row in outputs] for i in range(len(inputs))], inputs)

    def _allgather_base(self, output: torch.Tensor, tensor: torch.Tensor, opts: Any = None) -> PythonWork:
        return self.allgather_into_tensor_coalesced([output], [tensor], opts)

    def allgather_into_tensor_coalesced(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> PythonWork:
        for output, tensor in zip(outputs, inputs, strict=True):
            _require("all_gather", output, tensor, self._ranks)

        def start(sent: Tensors, gathered: Tensors) -> tuple[list[Any], Callable[[], None]]:
            works = [
                self._gloo.allgather([list(whole.view(self._ranks, -1).unbind())], [part.view(-1)])
                for whole, part in zip(gathered, sent, strict=True)
            ]
            return works, _nothing

        return self._collective("all_gather", inputs, outputs, start)

    def _gathered(self, outputs: list[Tensors], inputs: Tensors) -> PythonWork:
        """All-gather into lists of tensors, which may differ in size from rank to rank."""
        for row in outputs:
            if len(row) != self._ranks:
                raise ValueError(f"all_gather needs {self._ranks} outputs, one per rank, and got {len(row)}")

        def start(sent: Tensors, gathered: Tensors) -> tuple[list[Any], Callable[[], None]]:
            works = []
            for number, out in enumerate(gathered):
                root = number % self._ranks
                if root == self._me:
                    _fill([out], [sent[number // self._ranks]])
                works.append(self._broadcast(out, root))
            return works, _nothing

        return self._collective("all_gather", inputs, [out for row in outputs for out in row], start)

    def reduce_scatter(self, outputs: Tensors, inputs: list[Tensors], opts: Any = None) -> PythonWork:
        op, count = _reduce_op(opts), [len(row) for row in inputs]

        def start(parts: Tensors, results: Tensors) -> tuple[list[Any], Callable[[], None]]:
            sums = [part.clone() for part in parts]
            works = [self._all_reduce(part, op) for part in sums]
            mine = [sums[sum(count[:i]) + self._me] for i in range(len(count))]
            return works, lambda: _fill(results, [self._averaged(part, op) for part in mine])

        return self._collective("reduce_scatter", [t for row in inputs for t in row], outputs, start)

    def _reduce_scatter_base(self, output: torch.Tensor, tensor: torch.Tensor, opts: Any = None) -> PythonWork:
        return self.reduce_scatter_tensor_coalesced([output], [tensor], opts)

    def reduce_scatter_tensor_coalesced(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> PythonWork:
        op = _reduce_op(opts)
        for output, tensor in zip(outputs, inputs, strict=True):
            _require("reduce_scatter", tensor, output, self._ranks)

        def start(wholes: Tensors, results: Tensors) -> tuple[list[Any], Callable[[], None]]:
            sums = [whole.clone() for whole in wholes]
            works = [self._all_reduce(whole, op) for whole in sums]
            mine = [whole.view(self._ranks, -1)[self._me] for whole in sums]
            return works, lambda: _fill(results, [self._averaged(part, op) for part in mine])

        return self._collective("reduce_scatter", inputs, outputs, start)

    def alltoall_base(
        self, output: torch.Tensor, tensor: torch.Tensor, out_splits: list[int], in_splits: list[int], opts: Any = None
    ) -> PythonWork:
        out_splits = list(out_splits) or [output.shape[0] // self._ranks] * self._ranks
        in_splits = list(in_splits) or [tensor.shape[0] // self._ranks] * self._ranks
        if sum(out_splits) != output.shape[0] or sum(in_splits) != tensor.shape[0]:
            raise RuntimeError("all_to_all: the split sizes do not add up to the tensor's size in dimension 0")

        def start(sent: Tensors, received: Tensors) -> tuple[list[Any], Callable[[], None]]:
            return [self._gloo.alltoall_base(received[0], sent[0], out_splits, in_splits)], _nothing

        return self._collective("all_to_all", [tensor], [output], start)

    def alltoall(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> PythonWork:
        def start(sent: Tensors, received: Tensors) -> tuple[list[Any], Callable[[], None]]:
            flat = torch.cat([part.view(-1) for part in sent])
            result = torch.empty(sum(out.numel() for out in received), dtype=flat.dtype)
            sizes = [out.numel() for out in received]
            work = self._gloo.alltoall_base(result, flat, sizes, [part.numel() for part in sent])
            return [work], lambda: _fill(received, result.split(sizes))

        return self._collective("all_to_all", inputs, outputs, start)

    def gather(self, outputs: list[Tensors], inputs: Tensors, opts: Any) -> PythonWork:
        def start(sent: Tensors, gathered: Tensors) -> tuple[list[Any], Callable[[], None]]:
            return [self._gloo.gather([gathered] if gathered else [], sent, opts)], _nothing

        return self._collective("gather", inputs, [out for row in outputs for out in row], start)

    def scatter(self, outputs: Tensors, inputs: list[Tensors], opts: Any) -> PythonWork:
        def start(sent: Tensors, received: Tensors) -> tuple[list[Any], Callable[[], None]]:
            return [self._gloo.scatter(received, [sent] if sent else [], opts)], _nothing

        return self._collective("scatter", [t for row in inputs for t in row], outputs, start)

    def barrier(self, opts: Any = None) -> PythonWork:
        return self._collective("barrier", [], [], lambda _, __: ([self._gloo.barrier()], _nothing))

    def send(self, tensors: Tensors, dst: int, tag: int) -> PythonWork:
        return self._collective("send", tensors, [], lambda sent, _: ([self._gloo.send(sent, dst, tag)], _nothing))

    def recv(self, tensors: Tensors, src: int, tag: int) -> PythonWork:
        return self._collective("recv", [], tensors, lambda _, got: ([self._gloo.recv(got, src, tag)], _nothing))

    def recv_anysource(self, tensors: Tensors, tag: int) -> PythonWork:
        return self._collective("recv", [], tensors, lambda _, got: ([self._gloo.recv_anysource(got, tag)], _nothing))

    # The names that torch 2.13 introduced for the same things.
    all_gather_single = _allgather_base
    all_gather_single_coalesced = allgather_into_tensor_coalesced
    reduce_scatter_single = _reduce_scatter_base
    reduce_scatter_single_coalesced = reduce_scatter_tensor_coalesced
    all_to_all_single = alltoall_base

    def _collective(self, kind: str, reads: Sequence[Any], writes: Sequence[Any], start: Start) -> PythonWork:
        return self._issue(Collective(kind, self.group_name, list(reads), list(writes), start))

    def _all_reduce(self, tensor: torch.Tensor, op: Any) -> Any:
        options: Any = dist.AllreduceOptions()
        options.reduceOp = dist.ReduceOp.SUM if op == dist.ReduceOp.AVG else op
        return self._gloo.allreduce([tensor], options)

    def _averaged(self, tensor: torch.Tensor, op: Any) -> torch.Tensor:
        """Gloo has no AVG on older versions; it is the sum divided here."""
        return tensor / self._ranks if op == dist.ReduceOp.AVG else tensor

    def _broadcast(self, tensor: torch.Tensor, root: int) -> Any:
        options = dist.BroadcastOptions()
        options.rootRank, options.rootTensor = root, 0
        return self._gloo.broadcast([tensor], options)


def writable(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor's memory, writable without autograd or the tensor's version counter noticing: gloo's threads write
    that way, too."""
    return tensor.data


def _fill(targets: Sequence[torch.Tensor], sources: Sequence[torch.Tensor]) -> None:
    for target, source in zip(targets, sources, strict=True):
        if target.data_ptr() != source.data_ptr():
            writable(target).copy_(source.view(target.shape))


def _nothing() -> None:
    pass


def _list(tensors: Any) -> Tensors:
    return [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)


def _reduce_op(opts: Any) -> Any:
    return dist.ReduceOp.SUM if opts is None else getattr(opts, "reduceOp", opts)


def _require(kind: str, large: torch.Tensor, small: torch.Tensor, ranks: int) -> None:
    if large.dtype != small.dtype:
        raise TypeError(f"{kind}: input and output have types {small.dtype} and {large.dtype}")
    if large.numel() != small.numel() * ranks:
        raise ValueError(f"{kind}: {large.numel()} elements are not {ranks} times {small.numel()}")
