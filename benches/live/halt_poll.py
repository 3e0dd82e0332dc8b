"""Guest halt polling (Documentation/virt/guest-halt-polling.rst): sets haltpoll.guest_halt_poll_ns and puts it back.

The value found first is written to a file before anything is changed, so that the next start restores it after a
`kill -9`. Touches that file and the module's parameter, nothing else; needs root.
"""

import contextlib
import os
from pathlib import Path
from typing import Iterator

from suite import BUILD

PARAMETER = Path("/sys/module/haltpoll/parameters/guest_halt_poll_ns")
SAVED = BUILD / "guest_halt_poll_ns.saved"


def unavailable() -> str | None:
    """Why the setting cannot be changed here; None if it can."""
    if not PARAMETER.exists():
        return "the module haltpoll is not loaded"
    return None if os.access(PARAMETER, os.W_OK) else "setting guest_halt_poll_ns needs root"


def current_ns() -> int | None:
    return int(PARAMETER.read_text()) if PARAMETER.exists() else None


def restore() -> None:
    """Puts back what a run, ended or killed, found."""
    if SAVED.exists():
        PARAMETER.write_text(SAVED.read_text())
        SAVED.unlink()


@contextlib.contextmanager
def polling(poll_ns: int) -> Iterator[None]:
    """Sets guest_halt_poll_ns to `poll_ns` for the block's duration."""
    if current_ns() == poll_ns:
        yield
        return
    original = not SAVED.exists()
    before_ns = current_ns()
    if original:
        temporary = SAVED.with_suffix(".new")
        temporary.write_text(str(before_ns))
        temporary.rename(SAVED)
    try:
        PARAMETER.write_text(str(poll_ns))
        yield
    finally:
        if original:
            restore()
        else:
            PARAMETER.write_text(str(before_ns))
