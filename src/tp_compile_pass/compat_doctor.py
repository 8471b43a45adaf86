"""Dynamo's settings that decide whether a backend is asked at all.

Checked on torch 2.5.1, 2.6.0, 2.9.1, 2.13.0 and 2.15.0; a setting that a version lacks is None. The stance came with
torch 2.6, the precompile cache with 2.9, the override of backends with 2.15.
"""

from __future__ import annotations

import os
from typing import Any


def dynamo_setting(*names: str) -> Any:
    """The value of a setting of `torch._dynamo.config`, by the first name that this torch knows; None without any."""
    from torch._dynamo import config

    return next((getattr(config, name) for name in names if hasattr(config, name)), None)


def is_disabled() -> bool:
    """Whether `torch.compile` returns what it is given."""
    return bool(dynamo_setting("disable")) or os.environ.get("TORCHDYNAMO_DISABLE") == "1"


def stance() -> tuple[str, object]:
    """The compiler's stance, and the backend that it forces on everybody (None: none)."""
    from torch._dynamo import eval_frame

    found = getattr(eval_frame, "_stance", None)
    return getattr(found, "stance", "default"), getattr(found, "backend", None)


def overridden_backends() -> str:
    """torch's debugging aid that gives chosen graphs to other backends; "" where it is not used."""
    return str(dynamo_setting("debug_backend_override") or "")


def overridden_inductor_config() -> str:
    """The same for Inductor's config of chosen graphs."""
    return str(dynamo_setting("debug_inductor_config_override") or "") or os.environ.get(
        "TORCH_COMPILE_OVERRIDE_INDUCTOR_CONFIGS", ""
    )
