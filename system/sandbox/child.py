"""The process in which one program that a model wrote runs. Started by `programs.py` as a script.

It reads a job from standard input, gives up everything a computation does not need, runs the
program, and says on standard output what came of it. It imports nothing but the standard library,
and only before it has locked itself in. What holds the program, strongest first:

- a filter in the kernel (Linux on x86-64 and ARM64): all system calls but those of a computation
  that reads files fail, so there are no processes, no network, no signals and no writing;
- resource limits: memory, CPU time, file size 0, open files, and processes of an ordinary user;
- a network namespace of its own, and another user, where the system grants them;
- an audit hook, which cannot be taken out again: it refuses what Python knows to be writing,
  networking, signalling or starting something, and the program fails even if it goes on. Windows
  has nothing else.
"""

from __future__ import annotations

import ctypes
import json
import os
import platform
import sys
from collections.abc import Callable
from typing import Any

if sys.platform != "win32":
    import resource

_MAX_REASON = 300
_SIGKILL = 9
_NAME = "program"
_NOBODY = 65534
_WRITE_FLAGS = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC

_PR_SET_PDEATHSIG, _PR_SET_SECCOMP, _PR_SET_NO_NEW_PRIVS = 1, 22, 38
_SECCOMP_MODE_FILTER = 2
_CLONE_NEWUSER, _CLONE_NEWNET = 0x10000000, 0x40000000

# From the kernel's linux/audit.h.
_ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}

# Numbers on x86-64 and on ARM64, from the kernel's unistd.h; None where there is no such call.
_SYSTEM_CALLS: dict[str, tuple[int, int | None]] = {
    "read": (0, 63), "readv": (19, 65), "pread64": (17, 67), "lseek": (8, 62),
    "write": (1, 64), "writev": (20, 66), "close": (3, 57), "dup": (32, 23),
    "stat": (4, None), "lstat": (6, None), "fstat": (5, 80), "newfstatat": (262, 79),
    "statx": (332, 291), "statfs": (137, 43), "fstatfs": (138, 44),
    "access": (21, None), "faccessat": (269, 48), "faccessat2": (439, 439),
    "readlink": (89, None), "readlinkat": (267, 78), "getdents64": (217, 61), "getcwd": (79, 17),
    "mmap": (9, 222), "mprotect": (10, 226), "munmap": (11, 215), "mremap": (25, 216),
    "madvise": (28, 233), "brk": (12, 214),
    "rt_sigaction": (13, 134), "rt_sigprocmask": (14, 135), "rt_sigreturn": (15, 139),
    "sigaltstack": (131, 132), "restart_syscall": (219, 128),
    "futex": (202, 98), "sched_yield": (24, 124), "sched_getaffinity": (204, 123),
    "getrandom": (318, 278), "uname": (63, 160), "sysinfo": (99, 179),
    "time": (201, None), "times": (100, 153), "gettimeofday": (96, 169), "getrusage": (98, 165),
    "clock_gettime": (228, 113), "clock_getres": (229, 114),
    "clock_nanosleep": (230, 115), "nanosleep": (35, 101),
    "poll": (7, None), "ppoll": (271, 73), "select": (23, None), "pselect6": (270, 72),
    "getpid": (39, 172), "getppid": (110, 173), "gettid": (186, 178),
    "getuid": (102, 174), "geteuid": (107, 175), "getgid": (104, 176), "getegid": (108, 177),
    "exit": (60, 93), "exit_group": (231, 94),
}  # fmt: skip
_OPENAT = (257, 56)  # allowed for reading only

_REFUSED = (
    "_thread.start", "ctypes.", "fcntl.", "os.", "pty.", "resource.", "shutil.", "signal.",
    "socket.", "sqlite3.", "subprocess.", "sys.addaudithook", "syslog.", "tempfile.",
)  # fmt: skip
_HARMLESS = (
    "os.fwalk", "os.getxattr", "os.listdir", "os.listxattr", "os.putenv", "os.scandir",
    "os.unsetenv", "os.walk",
)  # fmt: skip
_REFUSED_MODULES = ("_dbm", "_gdbm", "_posixshmem")  # they write without telling the hook


def main() -> None:
    """Reads the job, runs its program, and reports."""
    job = json.load(sys.stdin.buffer)
    report = os.dup(1)
    os.dup2(2, 1)  # what the program prints goes where nothing is believed
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    refused: list[str] = []
    held_by = confine(job["limits"], job["is_filtered"], refused)
    reason = run(job["source"])
    if refused:
        reason = f"tried {refused[0]}, which is refused"
    verdict = {"reason": reason, "held_by": held_by}
    os.write(report, f"{job['token']} {json.dumps(verdict)}\n".encode())
    os._exit(0)  # nothing the program left behind runs any more


def run(source: str) -> str | None:
    """Runs a program; returns why it failed, None if it came to its end."""
    try:
        exec(compile(source, _NAME, "exec"), {"__name__": "program"})
    except BaseException as error:  # SystemExit too: leaving early is no success
        try:
            text = f"{type(error).__name__}: {str(error) or failed_assertion(error, source)}"
        except BaseException:
            text = "an error without a readable message"
        return text.strip().rstrip(":")[:_MAX_REASON]
    return None


def failed_assertion(error: BaseException, source: str) -> str:
    """Returns the line of the program that failed an assertion without a message."""
    place = error.__traceback__
    line = 0
    while place is not None and isinstance(error, AssertionError):
        if place.tb_frame.f_code.co_filename == _NAME:
            line = place.tb_lineno
        place = place.tb_next
    return source.split("\n")[line - 1].strip() if line else ""


def confine(limits: dict[str, int], is_filtered: bool, refused: list[str]) -> list[str]:
    """Gives up what the program shall not have; returns what holds it.

    refused: receives the name of everything the program tries and may not.
    """
    libc = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None
    held_by: list[str] = []
    if libc is not None and leave_network(libc):
        held_by.append("network namespace")
    if leave_root():
        held_by.append("another user")
    if libc is not None:
        # After the change of user, which resets it: the program dies with its parent.
        libc.prctl(_PR_SET_PDEATHSIG, _SIGKILL, 0, 0, 0)
    if sys.platform != "win32":
        for name, value in limits.items():
            lower_limit(getattr(resource, name), value)
        held_by.append("resource limits")
    if libc is not None and is_filtered and filter_system_calls(libc):
        held_by.append("system-call filter")
    sys.addaudithook(make_hook(refused))
    held_by.append("audit hook")
    return held_by


def lower_limit(kind: int, value: int) -> None:
    """Sets a resource limit, or leaves the lower one that holds already."""
    if sys.platform != "win32":
        _, hard = resource.getrlimit(kind)
        if hard != resource.RLIM_INFINITY:
            value = min(value, hard)
        resource.setrlimit(kind, (value, value))


def leave_network(libc: ctypes.CDLL) -> bool:
    """Moves into an empty network; returns whether the system let us."""
    flags = _CLONE_NEWNET if _is_root() else _CLONE_NEWUSER | _CLONE_NEWNET
    return bool(libc.unshare(flags) == 0)


def leave_root() -> bool:
    """Becomes nobody, if root and if nobody can read Python; returns whether that was so."""
    if sys.platform == "win32" or not _is_root():
        return False
    try:
        os.seteuid(_NOBODY)
        try:
            os.listdir(os.path.dirname(os.__file__))  # noqa: PTH208, PTH120
        finally:
            os.seteuid(0)
        os.setgroups([])
        os.setgid(_NOBODY)
        os.setuid(_NOBODY)
    except OSError:
        return False
    return True


def _is_root() -> bool:
    return sys.platform != "win32" and os.geteuid() == 0


class _Instruction(ctypes.Structure):
    _fields_ = (
        ("code", ctypes.c_ushort),
        ("jump_true", ctypes.c_ubyte),
        ("jump_false", ctypes.c_ubyte),
        ("value", ctypes.c_uint32),
    )


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.POINTER(_Instruction)))


def filter_system_calls(libc: ctypes.CDLL) -> bool:
    """Has the kernel refuse all system calls but a few; returns whether it can."""
    machine = platform.machine()
    if machine not in _ARCHITECTURES or sys.maxsize < 2**32:
        return False
    code = filter_code(machine)
    array = (_Instruction * len(code))(*[_Instruction(*line) for line in code])
    program = _Program(len(code), array)
    if libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0:
        return False
    return bool(libc.prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.byref(program), 0, 0) == 0)


def filter_code(machine: str) -> list[tuple[int, int, int, int]]:
    """Returns the filter, in instructions (code, jump if true, jump if false, value).

    A jump counts the instructions it leaps over. Whatever is not allowed fails with EPERM, as if
    permission were missing.

    Source: linux/seccomp.h, linux/bpf_common.h.
    """
    load, equal, has_bits, give = 0x20, 0x15, 0x45, 0x06
    refuse, allow = 0x00050000 | 1, 0x7FFF0000
    column = list(_ARCHITECTURES).index(machine)
    numbers = [call[column] for call in _SYSTEM_CALLS.values()]
    known = [number for number in numbers if number is not None]
    code = [(load, 0, 0, 4), (equal, 1, 0, _ARCHITECTURES[machine]), (give, 0, 0, refuse)]
    code.append((load, 0, 0, 0))
    for i, number in enumerate(known):
        code.append((equal, len(known) - i + 3, 0, number))
    code += [
        (equal, 1, 0, _OPENAT[column]),
        (give, 0, 0, refuse),
        (load, 0, 0, 16 + 8 * 2),  # the third argument: openat's flags
        (has_bits, 1, 0, _WRITE_FLAGS),
        (give, 0, 0, allow),
        (give, 0, 0, refuse),
    ]
    return code


def make_hook(refused: list[str]) -> Callable[[str, tuple[Any, ...]], None]:
    """Returns the audit hook; it notes in ``refused`` what it refused."""

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if is_refused(event, arguments):
            refused.append(event)
            raise PermissionError(f"{event} is refused here")

    return hook


def is_refused(event: str, arguments: tuple[Any, ...]) -> bool:
    """Returns whether an audit event is more than a computation needs."""
    if event == "open":
        flags = arguments[2]
        return isinstance(flags, int) and bool(flags & _WRITE_FLAGS)
    if event == "import":
        return arguments[0] in _REFUSED_MODULES
    return event.startswith(_REFUSED) and event not in _HARMLESS


if __name__ == "__main__":
    main()
