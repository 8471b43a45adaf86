"""Fuzzes for a given time: `python -m tests.fuzz --minutes 60 --seed 1`. Prints what was run and every failure, shrunk.

Half of the time goes to random programs under Inductor and under AOTAutograd alone, on gloo and on the group that
delivers NaN until a wait; half to random edits of graphs. Exit code 1 where anything failed.

`--verify-only --programs 500` compiles so many programs for a group that does not communicate and counts what the
verifier says about their graphs: exit code 1 where it says anything, for each of them is valid.
"""

import argparse
import random
import sys
import time
import warnings
from collections import Counter
from pathlib import Path

import torch
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).parent))

from random_edits import ILLEGAL, LEGAL
from random_programs import LOCAL, NATIVE, check, copied, pool, programs, traced
from verify_only import look

from tp_compile_pass.verify.check import differences, findings
from tp_compile_pass.verify.snapshot import snapshot
from tp_compile_pass.verify.trace import trace

tried: Counter = Counter()
survived: Counter = Counter()
#: A property that failed so often is not tried again.
MANY = 10
GRAPHS = programs(LOCAL + NATIVE, training=False)


def edits(program, number, legal):
    """Some legal edits, and each illegal one, of the program's graph."""
    valid = traced(program)
    tried["graphs"] += 1
    assert findings(trace(valid), "x") == []
    for illegal in ILLEGAL:
        if not broken(valid, [illegal], number, "illegal edits"):
            survived[illegal.__name__] += 1
            raise AssertionError(f"{illegal.__name__} survived")
    found = broken(valid, legal, number, "legal edits")
    assert not found or found == [None], f"{[edit.__name__ for edit in legal]}: {found}"


def broken(valid, changes, number, what):
    """What the verifier says about `changes` of a copy of a graph; [None] where there is no place for them."""
    gm = copied(valid)
    frozen = snapshot(trace(gm))
    if not any([change(gm, random.Random(number)) for change in changes]):
        return [None]
    gm.graph.lint()
    tried[what] += len(changes)
    after = trace(gm)
    return [str(f) for f in findings(after, "x")] + list(differences(frozen, snapshot(after)))


def run(name, check_one, strategies, until, number, examples):
    """Runs a property with fresh seeds until the clock says stop; returns whether it ever failed."""
    failures = 0
    while time.monotonic() < until and failures < MANY:
        number += 1

        def until_then(drawn):
            if time.monotonic() < until:  # a round ends early
                check_one(*drawn)

        several = settings(
            max_examples=examples,
            deadline=None,
            database=None,
            suppress_health_check=list(HealthCheck),
            phases=(Phase.generate, Phase.shrink),
        )
        try:
            seed(number)(several(given(st.tuples(*strategies))(until_then)))()
        except Exception as error:
            failures += 1
            print(f"FAILED {name}, seed {number}: {str(error)[-3000:]}", *getattr(error, "__notes__", []), flush=True)
    return failures > 0


def verify_only(first, programs):
    """Prints what the verifier looked at and said; returns whether it said anything."""
    warnings.simplefilter("ignore")
    seen, found = look(range(first, first + programs))
    for program, said in found:
        print(program, *said, sep="\n  ")
    print(f"torch {torch.__version__}, programs {first} to {first + programs - 1}: {dict(seen)}")
    print(f"programs with findings: {len(found)}")
    return bool(found)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--verify-only", action="store_true")
    parser.add_argument("--programs", type=int, default=500, help="with --verify-only")
    arguments = parser.parse_args()
    if arguments.verify_only:
        sys.exit(verify_only(arguments.seed, arguments.programs))
    begin, span = time.monotonic(), arguments.minutes * 60
    until = begin + span / 4
    number = arguments.seed * 1_000_000

    legal = st.lists(st.sampled_from(LEGAL), max_size=4)
    failed = run("edits", edits, (GRAPHS, st.integers(0, 999), legal), until, number, 200)
    shares = {("deferred", "aot_eager"): 0.5, ("gloo", "aot_eager"): 0.6, ("deferred", "inductor"): 0.85}
    shares["gloo", "inductor"] = 1.0
    for (backend, inner), share in shares.items():
        name = f"programs on {backend} with {inner}"
        with pool(arguments.ranks, backend) as ranks:

            def equal(program, ranks=ranks, inner=inner, name=name):
                ranks.run(check, program, {"tp.inner": inner, "tp.strict": True})
                tried[name] += 1

            failed |= run(name, equal, (programs(),), begin + span * share, number, 40)
    print(f"torch {torch.__version__}, seed {arguments.seed}, {(time.monotonic() - begin) / 60:.0f} min: {dict(tried)}")
    print(f"survived: {dict(survived) or 'none'}")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
