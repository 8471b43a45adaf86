"""`RankPool`: real ranks for tests, started once and given many checks.

    def check(scale):                       # a module-level function; runs on every rank
        x = torch.ones(2) * (dist.get_rank() + 1)
        dist.all_reduce(x)
        return x * scale

    with RankPool(2) as ranks:
        assert all(r.tolist() == [30.0, 30.0] for r in ranks.run(check, 10))

A check that raises on some rank raises `RankError` here with that rank's traceback. A rank that dies or does not answer
in time fails the check, is named, and its Python stack is shown (that of all threads where a signal killed it); nothing
ever hangs. After a failure the ranks are started afresh, because a rank that failed half way leaves the others out of
step.
"""

from __future__ import annotations

import faulthandler
import multiprocessing
import os
import pickle
import signal
import tempfile
import time
import traceback
from collections.abc import Callable
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

#: Seconds a rank may take to import torch and join the process group.
START_TIMEOUT = 120.0
#: Seconds the other ranks get to report after one has failed, before they are taken as stuck in a collective.
GRACE = 5.0


class RankError(AssertionError):
    """A check failed on some rank: it raised, died, or did not answer in time."""


class RankPool:
    """`world_size` processes joined in one process group of `backend` on CPU, with one thread each.

    `setup`, a module-level function, runs on every rank before the group is made (to register a process-group backend,
    say). `timeout` is in seconds and holds for one check; `run` can override it.
    """

    def __init__(
        self,
        world_size: int = 2,
        backend: str = "gloo",
        *,
        setup: Callable[[], None] | None = None,
        timeout: float = 180.0,
        env: dict[str, str] | None = None,
    ) -> None:
        self.world_size, self.backend, self.timeout = world_size, backend, timeout
        self._setup, self._env = setup, env or {}
        self._processes: list[Any] = []
        self._pipes: list[Connection] = []
        self._directory: tempfile.TemporaryDirectory[str] | None = None

    def run(self, check: Callable[..., Any], *args: Any, timeout: float | None = None) -> list[Any]:
        """Runs `check(*args)` on every rank at once and returns what each returned, by rank.

        `check` is a module-level function and `args` can be pickled. Dynamo is reset before each check. Raises
        RankError.
        """
        if not self._processes:
            self._start()
        for pipe in self._pipes:
            pipe.send((check, args))
        return self._answers(getattr(check, "__name__", str(check)), timeout or self.timeout)

    def close(self) -> None:
        """Ends the ranks. The next `run` starts new ones."""
        for pipe in self._pipes:
            pipe.close()
        deadline = time.monotonic() + GRACE
        for process in self._processes:
            process.join(max(0.0, deadline - time.monotonic()))
            if process.is_alive():
                process.kill()
                process.join()
        self._processes, self._pipes = [], []
        if self._directory is not None:
            self._directory.cleanup()
            self._directory = None

    def __enter__(self) -> RankPool:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _start(self) -> None:
        self._directory = tempfile.TemporaryDirectory(prefix="ranks-")
        context = multiprocessing.get_context("spawn")
        env = {
            "OMP_NUM_THREADS": "1",
            "GLOO_SOCKET_IFNAME": "lo",
            "TORCHINDUCTOR_COMPILE_THREADS": "1",
            "WORLD_SIZE": str(self.world_size),
            **self._env,
        }
        for rank in range(self.world_size):
            ours, theirs = context.Pipe()
            arguments = (rank, self.world_size, self.backend, self._setup, self._directory.name, theirs, self.timeout)
            with _environment({**env, "RANK": str(rank), "LOCAL_RANK": str(rank)}):
                process = context.Process(target=_serve, args=arguments, daemon=True)
                process.start()
            theirs.close()
            self._processes.append(process)
            self._pipes.append(ours)
        self._answers("starting", START_TIMEOUT)

    def _answers(self, name: str, timeout: float) -> list[Any]:
        answers: dict[int, tuple[str, Any]] = {}
        deadline = time.monotonic() + timeout
        pending = dict(enumerate(self._pipes))
        while pending and (left := deadline - time.monotonic()) > 0:
            for pipe in wait(list(pending.values()), left):
                rank = self._pipes.index(pipe)  # type: ignore[arg-type]
                try:
                    answers[rank] = pending.pop(rank).recv()
                except (EOFError, OSError):
                    self._processes[rank].join(GRACE)
                    exitcode = self._processes[rank].exitcode
                    where = self._last_words(rank) if exitcode is not None and exitcode < 0 else ""
                    answers[rank] = ("died", f"rank {rank} died with exit code {exitcode}{where}")
                if answers[rank][0] != "ok":
                    deadline = min(deadline, time.monotonic() + GRACE)
        failed = [text for rank in sorted(answers) for kind, text in [answers[rank]] if kind != "ok"]
        if not failed and not pending:
            return [answers[rank][1] for rank in range(self.world_size)]
        if pending:
            late = ", ".join(f"rank {rank}" for rank in sorted(pending))
            after = "after another rank had failed" if failed else f"within {timeout:.0f} s"
            failed.append(f"{late} gave no answer {after}" + "".join(self._stack(rank) for rank in sorted(pending)))
        for process in self._processes:
            process.kill()
        self.close()
        raise RankError(f"{name} failed:\n" + "\n".join(failed))

    def _stack(self, rank: int) -> str:
        """The Python stack of a rank that does not answer."""
        process, file = self._processes[rank], self._stack_file(rank)
        try:
            os.kill(process.pid, signal.SIGUSR1)
            time.sleep(0.3)
            return f"\n  rank {rank} is at:\n{file.read_text()}"
        except OSError:
            return ""

    def _last_words(self, rank: int) -> str:
        """The Python stacks of a rank killed by a signal of its own: a segmentation fault or an abort, say."""
        try:
            text = self._stack_file(rank).read_text()
        except OSError:
            return ""
        return f", at:\n{text}" if text else ""

    def _stack_file(self, rank: int) -> Path:
        return _stack_file(self._directory.name if self._directory else "", rank)


def _stack_file(directory: str, rank: int) -> Path:
    return Path(directory) / f"stack-{rank}.txt"


class _environment:
    """Sets environment variables while a child process is started, so that it finds them before it imports torch."""

    def __init__(self, values: dict[str, str]) -> None:
        self._values, self._before = values, {key: os.environ.get(key) for key in values}

    def __enter__(self) -> None:
        os.environ.update(self._values)

    def __exit__(self, *exc: object) -> None:
        for key, value in self._before.items():
            if value is None:
                os.environ.pop(key, None)
            else:
                os.environ[key] = value


def _serve(
    rank: int,
    world_size: int,
    backend: str,
    setup: Callable[[], None] | None,
    directory: str,
    pipe: Connection,
    timeout: float,
) -> None:
    """A rank's main loop: answer each (check, args) with ("ok", result) or ("error", traceback)."""
    stack = _stack_file(directory, rank).open("w")
    faulthandler.register(signal.SIGUSR1, file=stack, all_threads=False)
    faulthandler.enable(file=stack)
    torch.set_num_threads(1)

    def start() -> None:
        if setup is not None:
            setup()
        store = dist.FileStore(os.path.join(directory, "store"), world_size)
        dist.init_process_group(
            backend, store=store, rank=rank, world_size=world_size, timeout=timedelta(seconds=timeout)
        )

    check: Callable[..., Any] = start
    args: tuple[Any, ...] = ()
    while True:
        try:
            answer = ("ok", check(*args))
        except BaseException:
            answer = ("error", f"rank {rank} raised:\n{traceback.format_exc()}")
        try:
            try:
                pipe.send(answer)
            except (TypeError, AttributeError, pickle.PicklingError) as error:
                pipe.send(("error", f"rank {rank} returned what cannot be pickled: {error}"))
            check, args = pipe.recv()
        except (EOFError, OSError):
            os._exit(0)  # the pool is closed; do not wait for the other ranks in a destructor
        torch.compiler.reset()
