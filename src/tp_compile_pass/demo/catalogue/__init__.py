"""The catalogue of call sites: the ways in which user code starts a collective and waits for it.

Each row is a small function written as users write it, private names of torch included. The demo shows them; the tests
hold each torch version to what `docs/call-sites.md` promises for it.
"""

from tp_compile_pass.demo.catalogue import lazy, modules, work  # noqa: F401  (importing them files their rows)
from tp_compile_pass.demo.catalogue.rows import CALL_SITES, KINDS, CallSite

__all__ = ["CALL_SITES", "KINDS", "CallSite"]
