"""Helpers for testing code that communicates: real ranks, started once and reused. Usable by our users too."""

from tp_compile_pass.testing import deferred, link
from tp_compile_pass.testing.ranks import RankError, RankPool

__all__ = ["RankError", "RankPool", "deferred", "link"]
