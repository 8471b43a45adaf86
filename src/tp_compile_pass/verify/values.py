"""The memory that a graph's values live in, and what of it is in flight."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from tp_compile_pass.verify.events import Start

#: The memory a value may live in: ids of buffers, or one Value for each element of a list.
Value = frozenset[int] | tuple["Value", ...]
NOWHERE: Value = frozenset()

#: In-flight memory: buffer → the collectives that still write it, or still read it.
Flight = dict[int, list[Start]]


def leaves(values: Any) -> Iterator[Any]:
    for value in values:
        if isinstance(value, (list, tuple)):
            yield from leaves(value)
        elif isinstance(value, dict):
            yield from leaves(value.values())
        else:
            yield value


def elements(value: Value) -> tuple[Value, ...]:
    return value if isinstance(value, tuple) else (value,)


def flat(values: Iterable[Value]) -> Iterator[int]:
    for value in values:
        if isinstance(value, tuple):
            yield from flat(value)
        else:
            yield from value


def copy_flight(flight: Flight) -> Flight:
    return {buffer: list(starts) for buffer, starts in flight.items()}


def union(flights: Iterable[Flight]) -> Flight:
    merged: Flight = {}
    for flight in flights:
        for buffer, starts in flight.items():
            known = merged.setdefault(buffer, [])
            known += [start for start in starts if start not in known]
    return merged


def either(results: list[Value]) -> Value:
    """The value of a branch: element by element, what either side returns."""
    first = results[0] if results else NOWHERE
    if all(isinstance(r, tuple) and len(r) == len(elements(first)) for r in results):
        return tuple(either([elements(r)[i] for r in results]) for i in range(len(elements(first))))
    return frozenset(flat(results))
