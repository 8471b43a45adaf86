"""Private torch API: printing a DeviceMesh while AOTAutograd traces. Checked on torch 2.5.1, 2.6.0, 2.9.1, 2.13.0 and
2.15.0; needed on 2.6 alone."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch


@contextmanager
def printable_meshes() -> Iterator[None]:
    """Lets AOTAutograd put the meshes of DTensors into its log, under `torch.inference_mode()`, too.

    torch 2.6 prints them whether or not anything is logged, and under its own fake tensor mode. In inference mode that
    mode gets to see the mesh's tensor being read, and fails on it, with every backend.
    """
    if not torch.distributed.is_available() or not torch.is_inference_mode_enabled():
        yield
        return
    from torch.distributed.device_mesh import DeviceMesh
    from torch.utils._python_dispatch import _disable_current_modes

    original = DeviceMesh.__repr__

    def outside_of_modes(self: Any) -> str:
        with _disable_current_modes():
            return original(self)

    with patch.object(DeviceMesh, "__repr__", outside_of_modes):
        yield
