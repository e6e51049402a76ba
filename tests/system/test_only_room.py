"""Nothing outside of `system` asks which operating system it runs on, or calls what one lacks."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDERS = (
    "models", "targets", "export", "kernels", "runtime", "autocomplete", "widgets", "apps", "src",
    "examples",
)  # fmt: skip

MODULES = {
    "_winapi", "fcntl", "grp", "msvcrt", "posix", "pty", "pwd", "resource", "selectors", "termios",
    "tty", "winreg",
}  # fmt: skip
"""Modules that some systems lack; `selectors` takes pipes on some alone."""

NAMES = {
    "sys": {"platform", "getwindowsversion"},
    "platform": {"machine", "system", "uname", "win32_ver", "mac_ver"},
    "signal": {
        "SIGALRM", "SIGBREAK", "SIGHUP", "SIGKILL", "SIGUSR1", "alarm", "pthread_kill",
        "set_wakeup_fd", "setitimer",
    },
    "mmap": {"MADV_DONTNEED", "MADV_NOHUGEPAGE"},
    "ctypes": {"WinDLL", "windll"},
    "os": {
        "O_BINARY", "O_DIRECTORY", "O_NOFOLLOW", "O_NONBLOCK", "fchmod", "fork", "fsync",
        "getloadavg", "getpgid", "geteuid", "getuid", "kill", "killpg", "memfd_create", "mkfifo",
        "name", "nice", "pread", "pwrite", "register_at_fork", "replace", "sched_getaffinity",
        "sched_setaffinity", "set_blocking", "setpriority", "setsid", "startfile", "sysconf",
        "umask", "uname",
    },
}  # fmt: skip
"""What systems lack, answer differently, or do differently."""

PLACES = ("/dev/", "/proc/", "/sys/")


def questions(path: Path) -> Iterator[str]:
    """Yields whatever a file asks or does that differs between systems."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in MODULES)
        elif isinstance(node, ast.ImportFrom):
            refused = NAMES.get(node.module or "", set())
            yield from (alias.name for alias in node.names if alias.name in refused)
            if node.module in MODULES:
                yield str(node.module)
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            if node.attr in NAMES.get(node.value.id, set()):
                yield f"{node.value.id}.{node.attr}"
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            if node.value.startswith(PLACES):
                yield node.value
        elif isinstance(node, ast.Call) and _is_guess(node):
            yield ast.unparse(node)


def _is_guess(call: ast.Call) -> bool:
    """Whether it asks if a module of Python's has a name, or opens the C library."""
    name, first = ast.unparse(call.func), call.args[0] if call.args else None
    if name in ("hasattr", "getattr"):
        return isinstance(first, ast.Name) and first.id in NAMES
    if name.endswith("CDLL"):
        return isinstance(first, ast.Constant) and first.value is None
    return any(word.arg in ("start_new_session", "preexec_fn", "creationflags")
               for word in call.keywords)  # fmt: skip


def test_other_folders_ask_nothing() -> None:
    files = sorted(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py"))
    assert len(files) > 20
    found = {str(path.relative_to(ROOT)): list(questions(path)) for path in files}
    found["autocomplete/edits/diffs.py"].remove("/dev/null")  # what diffs call a missing file
    assert {path: what for path, what in found.items() if what} == {}


def test_the_room_itself_would_be_found() -> None:
    found = {name for path in (ROOT / "system").rglob("*.py") for name in questions(path)}
    assert {"sys.platform", "fcntl", "resource", "os.pread", "/proc/stat"} <= found
