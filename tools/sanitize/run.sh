#!/usr/bin/env bash
# Builds the kernels with GCC's address and undefined-behaviour sanitizers into build/sanitize and
# runs their tests against that library, or a program. The first fault ends the run. The second time is
# quick: only what changed is compiled. Usage: tools/sanitize/run.sh PYTHON [PYTEST-ARGUMENT...]
# or tools/sanitize/run.sh PYTHON PROGRAM.py [ARGUMENT...]
# With tools/arm/python (tools/arm/build.sh makes what that needs) they are ARM's kernels, under
# emulation, in build/sanitize-arm.
set -euo pipefail

python=$(realpath -s "$(command -v "${1:?usage: tools/sanitize/run.sh PYTHON [ARGUMENT...]}")")
shift
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
out=$PWD/build/sanitize
compiler=g++
options=(-G Ninja)
if [[ $python -ef tools/arm/python ]]; then
  out=$PWD/build/sanitize-arm
  compiler=aarch64-linux-gnu-g++
  options=(-DCMAKE_SYSTEM_NAME=Linux -DCMAKE_SYSTEM_PROCESSOR=aarch64)
fi

fail() {
  echo "$1" >&2
  exit 1
}

# Another compiler's runtime has another name and cannot be loaded ahead of Python as simply.
command -v "$compiler" >/dev/null || fail "the sanitized kernels need $compiler: install it"
# The C++ library, too: else the sanitizer finds nobody to pass exceptions on to.
runtime=$("$compiler" -print-file-name=libasan.so)
[[ -e $runtime ]] || fail "$compiler has no libasan: install the package of GCC that holds it"
for name in libubsan.so libstdc++.so.6; do runtime+=" $("$compiler" -print-file-name=$name)"; done

PATH=$(dirname "$python"):$PATH
mkdir -p "$out"
cmake -S kernels -B "$out" "${options[@]}" -DCMAKE_CXX_COMPILER="$compiler" -DEDGEDEC_SANITIZE=ON \
  -Wno-dev >"$out/cmake.log" || fail "cmake failed: see $out/cmake.log"
cmake --build "$out"

export SANITIZED_KERNELS=$out
# Python itself never frees all it has, so leaks say nothing here.
export ASAN_OPTIONS=detect_leaks=0 UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1
# An emulator hands on what it is told, and must not load it itself.
preload=LD_PRELOAD=$runtime
[[ $compiler == g++ ]] || preload=QEMU_SET_ENV=$preload
export "$preload"
exec "$python" -c 'import runpy, sys
sys.path.insert(0, "tools/sanitize")
import sanitized_kernels
program = sys.argv[1] if sys.argv[1:] and sys.argv[1].endswith(".py") else None
if program is None:
    import pytest
    options = ["-p", "sanitized_kernels", "-p", "no:cacheprovider", "--capture=sys", "tests/kernels"]
    sys.exit(pytest.main([*options, *sys.argv[1:]]))
sanitized_kernels.use()
sys.argv = sys.argv[1:]
sys.path.insert(0, program.rpartition("/")[0])
runpy.run_path(program, run_name="__main__")' "$@"
