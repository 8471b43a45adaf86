"""`TPOptions`: everything a user can tell us, validated once.

An option comes from `torch.compile(..., options={"tp.inner": ...})`, else from the environment variable
`TP_COMPILE_PASS_INNER` (most frameworks let users pass only a backend's name), else from its default.
"""

from __future__ import annotations

import difflib
import os
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

PREFIX = "tp."
ENV_PREFIX = "TP_COMPILE_PASS_"


class TPOptionError(ValueError):
    """An option of ours that does not exist or has a value it cannot have. The message names the option, where the
    value came from and what would be accepted."""


class TPOptions(BaseModel):
    """The options of `backend="tp_inductor"`; the field `x` is written `tp.x` in `options=` and `TP_COMPILE_PASS_X` in
    the environment."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    inner: Literal["inductor", "aot_eager", "eager"] = Field(
        "inductor",
        description="What compiles the graph after capture: Inductor, or (for debugging and fast tests) AOTAutograd "
        "with eager kernels, or the captured graph run as it is.",
    )
    strict: bool = Field(
        False,
        description="Raise when a step of ours fails, instead of warning and leaving that graph as plain Inductor "
        "would have compiled it.",
    )

    verify: Literal["error", "warn", "off"] = Field(
        "error",
        description="Check at compile time that no collective is lost, raced or reordered. A violation in the program "
        "that is certain to be one is an error, every other a warning; `warn` makes all of them warnings. A pass of "
        "ours that breaks a rule is undone in either case.",
    )

    overlap: bool = Field(
        True,
        description="Order kernels, collectives and waits so that communication runs behind compute.",
    )
    memory_slack: float = Field(
        0.05,
        ge=0,
        description="How much more memory `tp.overlap` may take at its peak than Inductor's order does, as a share of "
        "that.",
    )

    drop_unused: bool = Field(
        False,
        description="Take out collectives whose result nothing reads. Your word that no rank of the group reads it, "
        "and that they are no barrier.",
    )
    own_part: bool = Field(
        False,
        description="Merge a collective with the cut that follows: an all_reduce of which each rank reads its own part "
        "becomes a reduce_scatter, an all_gather of parts just cut is not sent. Your word that where rank 0 takes the "
        "first part, every rank takes its own.",
    )

    rank_check: Literal["off", "warn", "error"] = Field(
        "off",
        description="Compare, at compile time, what the ranks of each process group will communicate. `warn` does so "
        "in the background; `error` waits for the other ranks and raises where they differ or do not come.",
    )
    rank_check_timeout: float = Field(
        300.0,
        gt=0,
        description="Seconds that `tp.rank_check` gives another rank to compile the same function.",
    )

    @classmethod
    def split(cls, options: dict[str, Any] | None) -> tuple[TPOptions, dict[str, Any]]:
        """Separates `tp.*` from Inductor's options.

        Returns (our options, the rest for Inductor to validate). Raises TPOptionError on an unknown `tp.` name or
        variable (with the near matches) and on a value of the wrong type.
        """
        ours: dict[str, Any] = {}
        rest: dict[str, Any] = {}
        origin: dict[str, str] = {}
        for key, value in (options or {}).items():
            if not key.startswith(PREFIX):
                rest[key] = value
                continue
            field = cls._known(key.removeprefix(PREFIX).replace("-", "_"), f"option {key!r}")
            ours[field], origin[field] = value, f"option {key!r}: {value!r}"
        environment: dict[str, str] = {}
        for variable, text in os.environ.items():
            if not variable.startswith(ENV_PREFIX):
                continue
            field = cls._known(variable.removeprefix(ENV_PREFIX).lower(), f"environment variable {variable}")
            if field not in ours:
                environment[field], origin[field] = text, f"environment variable {variable}={text!r}"
        try:
            # Text from the environment is parsed ("1" is True); a value from code must have the right type already.
            parsed = cls.model_validate(environment).model_dump(exclude_unset=True)
            return cls.model_validate({**parsed, **ours}, strict=True), rest
        except ValidationError as error:
            raise TPOptionError("; ".join(f"{origin[str(e['loc'][0])]}: {e['msg']}" for e in error.errors())) from None

    @classmethod
    def _known(cls, field: str, where: str) -> str:
        if field in cls.model_fields:
            return field
        near = difflib.get_close_matches(field, cls.model_fields, n=3, cutoff=0.5)
        hint = f"; did you mean {' or '.join(PREFIX + n for n in near)}?" if near else ""
        known = ", ".join(PREFIX + n for n in cls.model_fields)
        raise TPOptionError(f"{where} is unknown{hint} (known: {known})")
