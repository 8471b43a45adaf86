"""Whose time a compilation takes, by looking every few milliseconds where the compiling thread is."""

import collections
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import tp_compile_pass

INTERVAL = 0.003  # seconds
OURS = str(Path(tp_compile_pass.__file__).parent) + "/"
#: Functions of ours that only hand a graph on to torch: what is below them is torch's. None: all of the file's.
HANDS_ON: dict[str, set[str] | None] = {
    "backend.py": {"tp_inductor", "_compile"},
    "inner.py": {"<lambda>"},
    "compat.py": {"compile_fx", "inner_compile", "<lambda>"},
    "compat_dynamo.py": None,
    "schedule/run.py": {"compile"},
}
#: What is called from these folders of ours is their time, in whichever file it is spent.
PARTS = {"verify": "verifier", "schedule": "schedule"}


@contextmanager
def sampling() -> Iterator[collections.Counter[str]]:
    """Counts samples of the calling thread while the block runs. Keys: what `owner` says of our files, "Dynamo" (before
    and after Inductor is called), "Inductor" (with AOTAutograd) and "C++ compiler" (which Inductor calls)."""
    counts: collections.Counter[str] = collections.Counter()
    watched, done = threading.get_ident(), threading.Event()

    def look() -> None:
        while not done.wait(INTERVAL):
            counts[owner(sys._current_frames()[watched])] += 1

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    try:
        yield counts
    finally:
        done.set()
        thread.join()


def owner(frame: FrameType | None) -> str:
    """Whose time it is at `frame`; of ours, "part: file" or "file". What torch does for a pass of ours is its time."""
    stack = []
    while frame is not None:
        stack.append((frame.f_code.co_filename, frame.f_code.co_name))
        frame = frame.f_back
    nearest = next((i for i, (file, _) in enumerate(stack) if file.startswith(OURS)), len(stack))
    places = []
    for file, function in stack[nearest:]:
        if not file.startswith(OURS):
            break
        place = file.removeprefix(OURS)
        passed_on = HANDS_ON.get(place, set())
        if passed_on is not None and function not in passed_on and not place.startswith("compat"):
            places.append(place)
    if places:
        part = next((PARTS[place.split("/")[0]] for place in places if place.split("/")[0] in PARTS), "")
        return f"{part}: {places[0]}" if part else places[0]
    files = [file for file, _ in stack]
    if not any(file.endswith("torch/_inductor/compile_fx.py") for file in files):
        return "Dynamo"
    return "C++ compiler" if any(file.endswith("/subprocess.py") for file in files) else "Inductor"
