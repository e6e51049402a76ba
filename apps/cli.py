"""The `edgedec` program: runs a verb, and turns whatever goes wrong into an exit code.

Exit codes: 0 success, 1 failure (one line on standard error), 2 usage, 130 interrupted, 143 and 129
terminated (SIGTERM, SIGHUP).

What takes long to import is imported once signals are in hand.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Sequence
from typing import NoReturn

from edgedec.apps.console.endless_passes import end_endless_passes
from edgedec.models.errors import EdgedecError
from edgedec.system.signals import SignalWatch

_VERBS_AT_ONCE = ("run", "chat")
"""Verbs whose user waits for a first token."""

_OVERVIEW = {"--help", "-h", "--version"}
"""The overview is printed for one of these options, or if there are no arguments."""


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Runs the program and exits. ``arguments`` default to those of the process."""
    signals = SignalWatch()
    if arguments is None:  # the process is ours
        signals.start()
    from edgedec.system.streams import open_streams

    words = list(sys.argv[1:] if arguments is None else arguments)
    if arguments is None:
        open_streams()
        end_endless_passes()  # opens files, which must not get a standard stream's number
    try:
        code = _exit_code(words, signals)
        signals.end()
    except (KeyboardInterrupt, SystemExit):  # of a signal that had waited for an import
        code = 1
        signals.end()
    sys.exit(signals.exit_code or code)


def _exit_code(words: list[str], signals: SignalWatch) -> int:
    """Returns what the program ends with, after saying what went wrong."""
    from edgedec.apps.console.output import OutputError
    from edgedec.apps.console.terminal import print_error
    from edgedec.system.streams import is_reader_gone, silence_stdout

    try:
        return _run(words, signals)
    except SystemExit as stopped:
        return stopped.code if isinstance(stopped.code, int) else int(stopped.code is not None)
    except KeyboardInterrupt:
        return 130
    except BaseException as error:
        if is_reader_gone(error):
            silence_stdout()
            return 1
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        if signals.exit_code is None:  # or else that is what became of the interruption
            if "--debug" in words:
                import traceback

                traceback.print_exc()
            print_error(_explained(error))
        if isinstance(error, OutputError):
            silence_stdout()
        return 1


def _run(words: list[str], signals: SignalWatch) -> int:
    if words[:1] == ["help"]:
        words = [*words[1:], "--help"]
    is_verb_given = bool(words) and not words[0].startswith("-")
    if is_verb_given and words[0] in _VERBS_AT_ONCE:
        _start_soon()
    from edgedec.apps.console.output import output_error
    from edgedec.apps.console.terminal import flush_stdout
    from edgedec.apps.verbs import VERBS, make_app, make_overview

    if set(words) <= _OVERVIEW and "_EDGEDEC_COMPLETE" not in os.environ:
        app = make_overview()
    else:
        app = make_app(words[:1] if is_verb_given and words[0] in VERBS else VERBS)
    signals.is_started = True
    try:
        app(args=words, prog_name="edgedec")
    except OSError as error:
        if error.filename is None and error.errno in (errno.ENOSPC, errno.EBADF):
            raise output_error(error) from None  # while help was shown
        raise
    finally:
        flush_stdout()
    return 0


def _explained(error: BaseException) -> EdgedecError:
    if isinstance(error, EdgedecError):
        return error
    if isinstance(error, MemoryError):
        return EdgedecError(f"out of memory ({error}): use a smaller --context")
    if isinstance(error, OSError) and error.errno == errno.ENAMETOOLONG:
        # Whatever looks for a path finds out; none of them could do more about it.
        return EdgedecError(f"a name is too long for a file: {str(error.filename)[:40]}...")
    return EdgedecError(f"unexpected {type(error).__name__}: {error} (--debug shows more)")


def _start_soon() -> None:
    """Leaves out what delays short runs. To be called before NumPy is imported."""
    import atexit
    import gc

    # OpenBLAS would start a thread for every processor, each at full speed for a while: NumPy
    # multiplies no matrices here.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    # At its end a process gives all memory back at once. Without this, Python would first look for
    # what could go, which takes a tenth of the time.
    atexit.register(gc.freeze)
