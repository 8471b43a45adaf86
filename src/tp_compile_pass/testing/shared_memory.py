"""Sums over ranks of one machine, through memory that they share.

On a simulated link, moving the data should cost the cores little: a network card does it beside them. Gloo sends it
through sockets, which takes a rank 1 to 2 ms of its core for 2 MB; this takes a third of a millisecond. Gloo carries
the signals, so nothing here depends on the order in which a processor shows its writes to others.

Each rank copies what it contributes into a buffer of its own that the others map as well, and announces the buffer. Who
waits adds the ranks' buffers up, in the order of the ranks: all get the same bits. A buffer is used again once every
rank has said, with a later announcement, that it has read it; so nobody waits for memory. A rank that ends takes its
buffers along: it has to stay until the others have waited.
"""

from __future__ import annotations

import os
import weakref
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

#: Bytes from which on this is worth the announcement; smaller sums are gloo's.
SMALLEST = 1 << 16
#: With more sums than this started and not waited for, those whose data is there are finished by the next one.
OPEN = 32


@dataclass
class _Buffer:
    """Memory without a name (memfd_create(2)): it is gone with the processes that map it."""

    file: int
    data: torch.Tensor  # bytes
    sequence: int = -1  # of the last sum that it was lent to


class SharedSums:
    """The sums of one process group. `gloo` is a group of the same ranks, `store` is theirs alone. All ranks start the
    same sums in the same order."""

    def __init__(self, gloo: Any, store: Any, rank: int, ranks: int) -> None:
        self._gloo, self._ranks = gloo, ranks
        store.set(f"shared_sums/{rank}", _memory())
        self._shared = len({store.get(f"shared_sums/{other}") for other in range(ranks)}) == 1
        self._mapped: dict[tuple[int, int], torch.Tensor] = {}  # by process and its file
        self._free: dict[int, list[_Buffer]] = {}  # by size
        self._lent: list[_Buffer] = []
        self._next = 0
        self._open: dict[int, SharedSum] = {}  # by sequence
        self._read_by = [0] * ranks  # per rank: it has finished all sums before this one

    def takes(self, tensor: torch.Tensor) -> bool:
        """Whether `start` may be called. The same on every rank."""
        return self._shared and tensor.is_floating_point() and tensor.nbytes >= SMALLEST

    def start(self, tensor: torch.Tensor) -> SharedSum:
        """Starts to sum contiguous `tensor`, which holds the sum after the handle's `wait()`."""
        if len(self._open) > OPEN:
            for started in list(self._open.values()):
                started.is_completed()
        buffer = self._buffer(tensor.nbytes)
        buffer.data[: tensor.nbytes].view(tensor.dtype).copy_(tensor.view(-1))
        buffer.sequence = self._next
        self._next += 1
        self._lent.append(buffer)
        with torch.inference_mode(False):  # up to torch 2.5 gloo does not write to inference tensors
            note = torch.tensor([os.getpid(), buffer.file, min(self._open, default=buffer.sequence)])
            notes = [torch.empty_like(note) for _ in range(self._ranks)]
        started = SharedSum(self, tensor, buffer.sequence, notes, self._gloo.allgather([notes], [note]))
        self._open[buffer.sequence] = started
        return started

    def finish(self, tensor: torch.Tensor, sequence: int, notes: list[torch.Tensor]) -> None:
        """Adds up what the ranks announced in `notes`."""
        parts = []
        for rank, (process, file, read) in enumerate(note.tolist() for note in notes):
            self._read_by[rank] = max(self._read_by[rank], read)
            data = self._map(process, file, _rounded(tensor.nbytes))
            parts.append(data[: tensor.nbytes].view(tensor.dtype))
        total = tensor.view(-1)
        with torch.inference_mode(tensor.is_inference()):  # the one that is waited in need not be that of the start
            total.copy_(parts[0]) if self._ranks == 1 else torch.add(parts[0], parts[1], out=total)
            for part in parts[2:]:
                total.add_(part)
        del self._open[sequence]

    def _buffer(self, size: int) -> _Buffer:
        read = min(self._read_by)
        for buffer in [buffer for buffer in self._lent if buffer.sequence < read]:
            self._lent.remove(buffer)
            self._free.setdefault(buffer.data.nbytes, []).append(buffer)
        if free := self._free.get(_rounded(size)):
            return free.pop()
        file = os.memfd_create("simlink")
        buffer = _Buffer(file, self._map(os.getpid(), file, _rounded(size)))
        weakref.finalize(buffer, os.close, file)
        return buffer

    def _map(self, process: int, file: int, size: int) -> torch.Tensor:
        key = process, file
        if key not in self._mapped:
            path = f"/proc/{process}/fd/{file}"
            with torch.inference_mode(False):
                self._mapped[key] = torch.from_file(path, shared=True, size=size, dtype=torch.uint8)
        return self._mapped[key]


class SharedSum:
    """The handle of one sum, in the form of c10d's."""

    def __init__(
        self, sums: SharedSums, tensor: torch.Tensor, sequence: int, notes: list[torch.Tensor], signal: Any
    ) -> None:
        self._sums, self._tensor, self._sequence, self._notes, self._signal = sums, tensor, sequence, notes, signal
        self._done = False

    def is_completed(self) -> bool:
        """Whether the tensor holds the sum; where the data is there, it does from now on."""
        if not self._done and self._signal.is_completed():
            self.wait()
        return self._done

    def wait(self) -> None:
        """Blocks until the tensor holds the sum."""
        if not self._done:
            self._signal.wait()
            self._sums.finish(self._tensor, self._sequence, self._notes)
            self._done = True


def _rounded(size: int) -> int:
    """A power of two, so that a few sizes serve programs whose tensors vary."""
    return 1 << (size - 1).bit_length()


def _memory() -> str:
    """The same for processes that can map each other's files, as far as the kernel allows it at all."""
    if not hasattr(os, "memfd_create") or not Path("/proc/self/fd").is_dir():
        return f"process {os.getpid()}"
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{boot} {os.stat('/proc/self/ns/pid').st_ino} {os.getuid()}"
