"""Programs that a model wrote: whatever they try, they are held, judged, and gone."""

from __future__ import annotations

import json
import os
import platform
import socket
import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, cast

import pytest

from edgedec.apps.evaluation.human_eval import HumanEval
from edgedec.apps.evaluation.problem_answers import Answers
from edgedec.apps.evaluation.samples import SampleFile, Setting
from edgedec.apps.evaluation.tasks import Problem
from edgedec.apps.evaluation.walk import walk
from edgedec.apps.evaluation.work import Engines
from edgedec.apps.programs.contained import check_programs_run
from edgedec.models.errors import EdgedecError
from edgedec.runtime.config import GenerationConfig
from edgedec.runtime.drafting.stats import DecodeStats
from edgedec.runtime.engine.engine import Engine
from edgedec.runtime.engine.result import GenerationResult
from edgedec.system.sandbox import child, programs
from edgedec.system.sandbox.programs import Limits, Verdict, run_program

pytestmark = pytest.mark.robustness

SMALL = Limits(seconds=120, memory_bytes=200 << 20)
SHORT = Limits(seconds=0.7, memory_bytes=200 << 20)
IS_FILTERED = "system-call filter" in check_programs_run(Limits(seconds=60))


@pytest.fixture(params=[True, False], ids=["filtered", "unfiltered"])
def judge(request: pytest.FixtureRequest) -> Callable[..., Verdict]:
    """Returns a runner of programs with the kernel's filter, and one as where there is none."""

    def run(source: str, limits: Limits = SMALL) -> Verdict:
        return run_program(source, limits, is_filtered=request.param)

    return run


def test_a_program_that_ends_passes(judge: Callable[..., Verdict]) -> None:
    source = (
        "import bisect, collections, datetime, functools, hashlib, heapq, itertools, json, math\n"
        "import random, re, statistics, string, typing\n"
        "assert hashlib.md5(b'a').hexdigest().startswith('0cc1')\n"
        "assert open(__import__('os').__file__).read(1)\n"
        "print('fine')\n"
    )
    verdict = judge(source)
    assert verdict == Verdict(None, verdict.held_by)
    assert {"resource limits", "audit hook"} <= set(verdict.held_by)


def test_linux_filters_system_calls() -> None:
    if platform.machine() not in ("x86_64", "aarch64") or sys.platform != "linux":
        pytest.skip("the filter is for Linux on x86-64 and ARM64")
    if os.environ.get("QEMU_LD_PREFIX"):
        pytest.skip("user-mode emulation has no filter")
    assert IS_FILTERED


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("assert 1 == 2, 'unequal'", "AssertionError: unequal"),
        ("def f():\n  assert 1 == 2\nf()", "AssertionError: assert 1 == 2"),
        ("def f(:", "SyntaxError"),
        ("raise ValueError", "ValueError"),
        ("import sys\nsys.exit(0)", "SystemExit: 0"),
        ("raise SystemExit", "SystemExit"),
        ("exit()", "NameError"),
        ("raise KeyboardInterrupt", "KeyboardInterrupt"),
        ("import os\nos._exit(0)", "ended before the end of its test (exit code 0)"),
        ("class E(Exception):\n  def __str__(self): 1 / 0\nraise E", "an error"),
        ("x = []\nwhile True: x.append(bytearray(1 << 20))", "MemoryError"),
        ("x = bytearray(1 << 40)", "MemoryError"),
        ("import os\nwhile True: os.fork()", "tried os.fork"),
        ("import os\ntry: os.fork()\nexcept OSError: pass", "tried os.fork"),
        ("import os\nos.system('true')", "tried os.system"),
        ("import os\nos.execv('/bin/true', ['true'])", "tried os.exec"),
        ("import os\nos.posix_spawn('/bin/true', ['true'], {})", "tried os.posix_spawn"),
        ("import subprocess\nsubprocess.run(['true'])", "tried subprocess.Popen"),
        ("import multiprocessing as m\nm.Process(target=print).start()", ""),
        ("import os\nos.kill(os.getppid(), 9)", "tried os.kill"),
        ("import os\nos.killpg(os.getppid(), 9)", "tried os.killpg"),
        ("import socket\nsocket.socket()", "tried socket.__new__"),
        ("import urllib.request as r\nr.urlopen('http://127.0.0.1')", "tried socket"),
        ("import ctypes\nctypes.CDLL(None).fork()", "tried ctypes.dlopen"),
        ("import resource as r\nr.setrlimit(r.RLIMIT_AS, (-1, -1))", "tried resource.setrlimit"),
        ("import sys\nsys.addaudithook(print)", "tried sys.addaudithook"),
        ("open('/dev/null', 'w')", "tried open"),
        ("import os\nos.open('here', os.O_CREAT | os.O_WRONLY)", "tried open"),
        ("import os\nos.mkdir('here')", "tried os.mkdir"),
        ("import tempfile\ntempfile.NamedTemporaryFile()", "tried"),
    ],
)  # fmt: skip
def test_what_fails(judge: Callable[..., Verdict], source: str, reason: str) -> None:
    verdict = judge(source)
    assert verdict.reason is not None
    assert verdict.reason.startswith(reason)
    assert len(verdict.reason) <= 400


@pytest.mark.slow
@pytest.mark.parametrize(
    "source",
    [
        "while True: pass",
        "import time\ntime.sleep(1000)",
        "import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\ntime.sleep(1000)",
        "while True:\n  try:\n    while True: pass\n  except BaseException: pass",
        "import sys\nsys.stdin.read()\nimport time\ntime.sleep(1000)",
    ],
)
def test_what_does_not_end_is_ended(source: str) -> None:
    assert run_program(source, SHORT).reason is not None


def test_time_is_up() -> None:
    assert run_program("while True: pass", SHORT).reason == "ran longer than 0.7 s"


def test_endless_output_is_cut_off(judge: Callable[..., Verdict]) -> None:
    verdict = judge("while True: print('x' * 10000)")
    assert verdict.reason == "printed more than 1048576 bytes"
    verdict = judge("import os\nwhile True: os.write(3, b'x' * 10000)")
    assert verdict.reason == "printed more than 1048576 bytes"


def test_what_it_prints_is_no_verdict(judge: Callable[..., Verdict]) -> None:
    source = (
        "import os\n"
        "for number in (1, 2, 3):\n"
        "  os.write(number, b'00000000000000000000000000000000 {\"reason\": null}\\n')\n"
        "os._exit(0)\n"
    )
    assert not judge(source).is_passed


def test_files_outside_stay_as_they_are(judge: Callable[..., Verdict], tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    victim = tmp_path / "victim"
    victim.write_text("whole")
    victim.chmod(0o666)
    for attempt in (
        f"open({str(victim)!r}, 'w')",
        f"open({str(victim)!r}, 'a').write('more')",
        f"open({str(tmp_path / 'new')!r}, 'x')",
        f"import os\nos.remove({str(victim)!r})",
        f"import os\nos.rename({str(victim)!r}, {str(tmp_path / 'new')!r})",
        f"import os\nos.truncate({str(victim)!r}, 0)",
        f"import os\nos.chmod({str(victim)!r}, 0)",
        f"import os\nos.symlink({str(victim)!r}, {str(tmp_path / 'new')!r})",
        f"import shutil\nshutil.rmtree({str(tmp_path)!r})",
        f"import pathlib\npathlib.Path({str(victim)!r}).write_text('other')",
        f"import sqlite3\nsqlite3.connect({str(tmp_path / 'new')!r}).execute('create table t (x)')",
    ):
        assert not judge(attempt).is_passed, attempt
        assert victim.read_text() == "whole", attempt
        assert victim.stat().st_mode & 0o777 == 0o666
        assert list(tmp_path.iterdir()) == [victim], attempt


def test_nobody_is_called(judge: Callable[..., Verdict]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.2)
        port = server.getsockname()[1]
        source = f"import socket\nsocket.socket().connect(('127.0.0.1', {port}))"
        assert not judge(source).is_passed
        with pytest.raises(TimeoutError):
            server.accept()


def test_its_folder_is_gone_afterwards(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, judge: Callable[..., Verdict]
) -> None:
    monkeypatch.setattr(programs.tempfile, "tempdir", str(tmp_path))
    assert judge("import os\nassert os.listdir('.') == []").is_passed
    assert not run_program("while True: pass", SHORT).is_passed
    assert list(tmp_path.iterdir()) == []


ATTEMPTS = {
    "fork": "os.fork()",
    "exec": "os.execv('/bin/true', ['true'])",
    "spawn": "os.posix_spawn('/bin/true', ['true'], {})",
    "kill": "os.kill(os.getppid(), 0)",
    "socket": "socket.socket()",
    "pair": "socket.socketpair()",
    "write": "open(victim, 'w')",
    "append": "open(victim, 'a')",
    "create": "os.open(victim + '.new', os.O_CREAT)",
    "truncate": "os.truncate(victim, 0)",
    "remove": "os.remove(victim)",
    "rename": "os.rename(victim, victim + '.new')",
    "link": "os.link(victim, victim + '.new')",
    "mode": "os.chmod(victim, 0)",
    "times": "os.utime(victim)",
    "folder": "os.mkdir(victim + '.new')",
    "memory file": "os.memfd_create('x')",
    "priority": "os.setpriority(os.PRIO_PROCESS, os.getppid(), 19)",
    "limits": "resource.prlimit(os.getppid(), resource.RLIMIT_CORE, (0, 0))",
    "user": "os.setuid(os.getuid())",
}


def test_the_filter_alone_holds(tmp_path: Path) -> None:
    """Without the audit hook, limits and namespaces, so that nothing else can have refused."""
    if not IS_FILTERED:
        pytest.skip("this system filters no system calls")
    victim = tmp_path / "victim"
    victim.write_text("whole")
    script = (
        "import ctypes, importlib.util, json, os, resource, socket\n"
        f"spec = importlib.util.spec_from_file_location('child', {child.__file__!r})\n"
        "child = importlib.util.module_from_spec(spec)\n"
        "spec.loader.exec_module(child)\n"
        "assert child.filter_system_calls(ctypes.CDLL(None))\n"
        f"victim, found = {str(victim)!r}, {{}}\n"
        f"for name, attempt in {ATTEMPTS!r}.items():\n"
        "    try:\n"
        "        exec(attempt)\n"
        "        found[name] = 'done'\n"
        "    except OSError as error:\n"
        "        found[name] = error.errno\n"
        "found['read'] = open(victim).read()\n"
        "print(json.dumps(found))\n"
    )
    done = subprocess.run(
        [sys.executable, "-S", "-c", script], capture_output=True, text=True, check=True
    )
    expected: dict[str, object] = dict.fromkeys(ATTEMPTS, 1)  # EPERM
    assert json.loads(done.stdout) == expected | {"read": "whole"}
    assert list(tmp_path.iterdir()) == [victim]


def _run_filter(code: list[tuple[int, int, int, int]], arch: int, number: int, flags: int) -> int:
    """Returns what a filter gives; an interpreter of the instructions it is made of."""
    data = {0: number, 4: arch, 32: flags}
    register, at = 0, 0
    while True:
        kind, if_true, if_false, value = code[at]
        match kind:
            case 0x20:  # load
                register = data[value]
            case 0x15:  # equal?
                at += if_true if register == value else if_false
            case 0x45:  # any of these bits?
                at += if_true if register & value else if_false
            case 0x06:  # give
                return value
        at += 1


# From asm-generic/unistd.h and asm/unistd_64.h: calls no computation needs.
FORBIDDEN = {
    "x86_64": {
        "open": 2, "socket": 41, "clone": 56, "fork": 57, "vfork": 58, "execve": 59, "kill": 62,
        "ptrace": 101, "unlink": 87, "rename": 82, "fcntl": 72, "mount": 165, "prlimit64": 302,
        "io_uring_setup": 425, "clone3": 435, "openat2": 437, "x32 write": 0x40000001,
    },
    "aarch64": {
        "fcntl": 25, "unlinkat": 35, "renameat2": 276, "mount": 40, "ptrace": 117, "kill": 129,
        "socket": 198, "clone": 220, "execve": 221, "prlimit64": 261, "io_uring_setup": 425,
        "clone3": 435, "openat2": 437, "ftruncate": 46, "fchmodat": 53,
    },
}  # fmt: skip
ARCHES = {"x86_64": (0xC000003E, 257, 1), "aarch64": (0xC00000B7, 56, 64)}
ALLOW, REFUSE = 0x7FFF0000, 0x00050001


@pytest.mark.parametrize("machine", ARCHES)
def test_the_filter_for_each_machine(machine: str) -> None:
    code = child.filter_code(machine)
    arch, openat, write = ARCHES[machine]
    for name, number in FORBIDDEN[machine].items():
        assert _run_filter(code, arch, number, 0) == REFUSE, name
    assert _run_filter(code, arch, write, 0) == ALLOW
    assert _run_filter(code, arch ^ 1, write, 0) == REFUSE
    assert _run_filter(code, arch, openat, os.O_RDONLY | os.O_CLOEXEC) == ALLOW
    for flags in (os.O_WRONLY, os.O_RDWR, os.O_CREAT, os.O_TRUNC, os.O_RDWR | os.O_CLOEXEC):
        assert _run_filter(code, arch, openat, flags) == REFUSE
    n_allowed = sum(_run_filter(code, arch, number, 0) == ALLOW for number in range(1000))
    assert 40 < n_allowed < 70


def test_a_machine_where_nothing_runs_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    broken = tmp_path / "child.py"
    broken.write_text("import sys\nsys.exit(7)\n")
    monkeypatch.setattr(programs, "_CHILD", broken)
    with pytest.raises(EdgedecError, match="exit code 7"):
        check_programs_run(SMALL)


def test_a_system_that_cannot_hold_programs_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edgedec.apps.programs.contained.is_contained", lambda: False)
    with pytest.raises(
        EdgedecError, match=r"cannot contain the programs .* --uncontained-programs"
    ):
        check_programs_run(SMALL)
    assert check_programs_run(SMALL, is_uncontained_allowed=True)


@pytest.mark.slow
def test_an_evaluation_goes_on_after_programs_that_misbehave(tmp_path: Path) -> None:
    """Every text is the answer to one problem; only the last one is right."""
    bodies = [
        "import os\n    while True: os.fork()",
        "while True: pass",
        "x = []\n    while True: x.append(bytearray(1 << 20))",
        f"open({str(tmp_path / 'new')!r}, 'w').write('x')",
        "return 1",
    ]
    answers = iter(bodies)

    class Answered:
        def __init__(self, text: str) -> None:
            self.result = GenerationResult(
                text=text, token_ids=(1,), origins=("target",), finish_reason="stop",
                n_prompt_tokens=1, load_ms=0, ttft_ms=1, tpot_ms=0, peak_rss_mb=1,
                method="plain", lossless=True, stats=DecodeStats(),
            )  # fmt: skip

        def write(self, take: object) -> GenerationResult:
            return self.result

    class Talker:
        def forget_prompts(self) -> None: ...

        def generate(self, prompt: Any, request: GenerationConfig) -> Any:
            return Answered("").result  # the warm-up

        def stream(self, prompt: Any, request: GenerationConfig) -> Any:
            return Answered(f"    {next(answers)}")

        def __enter__(self) -> Any:
            return self

        def __exit__(self, *error: object) -> None: ...

    fields = {
        "prompt": "def one():\n",
        "test": "def check(candidate):\n    assert candidate() == 1\n",
        "entry_point": "one",
    }
    problems = [Problem(str(i), f"file:{i}", fields) for i in range(len(bodies))]
    with ExitStack() as stack:
        engines = Engines(lambda models: cast(Engine, Talker()), stack)
        task = HumanEval(is_chat=False, limits=Limits(seconds=5, memory_bytes=200 << 20))
        work = Answers(task, problems, [[1]] * len(problems), engines)
        file = SampleFile(None)
        setting = Setting("plain", GenerationConfig(method="plain"))
        assert walk(work, [setting], file, lambda phase, done, total: None, 1) is None
    samples = file.held.of(setting.fingerprint)
    assert [sample.metrics["passed"] for sample in samples] == [0, 0, 0, 0, 1]
    assert [sample.reason is None for sample in samples] == [False] * 4 + [True]
    assert not list(tmp_path.iterdir())
