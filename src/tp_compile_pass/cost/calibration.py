"""A measured calibration, as a file: one per host, device, torch, world size and process-group backend.

Files are JSON in the user's cache directory (`$XDG_CACHE_HOME`, else `~/.cache`), read with a limit, validated field by
field, and written in one step, so that a reader never sees half of one.
"""

from __future__ import annotations

import os
import re
import tempfile
import warnings
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from tp_compile_pass.cost.model import Costs, Link, Machine

#: Bytes that a calibration file may have; one has some hundreds.
LIMIT = 16_384
#: How much slower than measured a transfer may turn out: the machine is shared with the compute that it hides behind.
CAUTION = 1.5

_Rate = Annotated[float, Field(gt=0, lt=1e18, allow_inf_nan=False)]
_Seconds = Annotated[float, Field(ge=0, lt=60, allow_inf_nan=False)]
_Name = Annotated[str, Field(max_length=200)]


class Key(BaseModel):
    """What a calibration is valid for. `device` is the device's type, `model` its name as torch gives it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    host: _Name
    device: _Name
    model: _Name
    torch: _Name
    threads: Annotated[int, Field(ge=1)]
    world: Annotated[int, Field(ge=1)]
    backend: _Name

    @property
    def path(self) -> Path:
        """Where the calibration is kept."""
        parts = (self.host, self.device, self.model, f"{self.threads}t", self.torch, self.backend, str(self.world))
        name = "-".join(re.sub(r"[^A-Za-z0-9.+]+", "_", part) for part in parts if part)
        cache = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
        return Path(cache) / "tp_compile_pass" / "calibration" / f"{name[:200]}.json"


class Calibration(BaseModel):
    """What was measured: `flops` per second of a matrix product, bytes per second of `memory`, seconds of a kernel's
    `launch`; for the process group seconds `latency` per step of a collective and bytes per second of `bandwidth`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    version: Literal[1] = 1
    key: Key
    measured: _Name
    flops: _Rate
    memory: _Rate
    launch: _Seconds
    latency: _Seconds
    bandwidth: _Rate

    def costs(self) -> Costs:
        source = f"calibration of {self.measured}"
        link = Link(self.latency, self.bandwidth, source)
        return Costs(Machine(self.flops, self.memory, self.launch, source), {self.key.backend: link}, CAUTION)


def load(key: Key) -> Calibration | None:
    """The calibration for `key`; None where there is none. One that is not valid is warned about and ignored."""
    path = key.path
    try:
        with path.open("rb") as file:
            found = parse(file.read(LIMIT + 1))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        warnings.warn(f"tp_inductor: the calibration {path} is ignored: {error}", stacklevel=2)
        return None
    return found if found.key == key else None


def parse(text: bytes) -> Calibration:
    """A calibration from JSON. Raises ValueError, in one line, where it is too long or not valid."""
    if len(text) > LIMIT:
        raise ValueError(f"it is longer than {LIMIT} bytes")
    try:
        return Calibration.model_validate_json(text)
    except ValidationError as error:
        first = error.errors()[0]
        raise ValueError(f"{'.'.join(map(str, first['loc'])) or 'it'}: {first['msg']}") from None


def store(calibration: Calibration) -> Path:
    """Writes the calibration to where `load` finds it, readable by the user alone."""
    path = calibration.key.path
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, suffix=".tmp")
    try:
        with os.fdopen(descriptor, "w") as file:
            file.write(calibration.model_dump_json(indent=1))
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    return path
