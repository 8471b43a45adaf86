"""Where in the user's code a graph node comes from."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass

import torch

_TORCH_DIR = os.path.dirname(torch.__file__) + os.sep
_OWN_DIR = os.path.dirname(os.path.dirname(__file__)) + os.sep
_DEMO_DIR = os.path.join(_OWN_DIR, "demo") + os.sep
_FRAME = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+)(?:, in (?P<function>[^\n]+))?\n(?P<code>[^\n]*)')


@dataclass(frozen=True)
class SourceLine:
    """One line of user code: `file`, `line` (from 1), the `function` it is in and its text `code`."""

    file: str
    line: int
    function: str
    code: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


def is_library_file(file: str) -> bool:
    """Whether `file` is part of torch or of this package (the demo's models count as the user's)."""
    return file.startswith((_TORCH_DIR, _OWN_DIR)) and not file.startswith(_DEMO_DIR)


def source_line(node: torch.fx.Node) -> SourceLine | None:
    """The innermost line of the user's code that led to `node`; None where tracing recorded none.

    Frames inside torch and inside this package are passed over: they say how a call is implemented, not who made it.
    """
    frames = [
        SourceLine(m["file"], int(m["line"]), m["function"] or "", m["code"].strip())
        for m in _FRAME.finditer(node.meta.get("stack_trace") or "")
    ]
    for frame in reversed(frames):
        if not is_library_file(frame.file):
            return frame
    return frames[-1] if frames else None


def of_a_handle(node: torch.fx.Node) -> bool:
    """Whether `node` was traced from a call with `async_op=True`, whose handle knows how to wait wherever it goes."""
    return os.path.join(_OWN_DIR, "capture", "work") in (node.meta.get("stack_trace") or "")
