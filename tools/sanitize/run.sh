#!/usr/bin/env bash
# Builds the kernels with GCC's sanitizers and runs their tests against that library, or a program.
# The first fault ends the run. The second time is quick: only what changed is compiled.
#
# Usage: tools/sanitize/run.sh [--races] PYTHON [PYTEST-ARGUMENT...]
#     or tools/sanitize/run.sh [--races] PYTHON PROGRAM.py [ARGUMENT...]
# where a PROGRAM called test_*.py is more tests, beside those of the kernels.
#
# Faults of memory and undefined behaviour are found with the library in build/sanitize; with --races,
# data races between threads, in build/sanitize-races. If PYTHON is tools/arm/python (tools/arm/build.sh
# makes what that needs), it is ARM's kernels under emulation, in build/sanitize-arm.
set -euo pipefail

fail() {
  echo "$1" >&2
  exit 1
}

sanitizers=address,undefined libraries=(libasan.so libubsan.so) folder=sanitize
if [[ ${1-} == --races ]]; then
  shift
  sanitizers=thread libraries=(libtsan.so) folder=sanitize-races
fi
python=$(command -v -- "${1-}") ||
  fail "no Python '${1-}'; usage: tools/sanitize/run.sh [--races] PYTHON [ARGUMENT...]"
python=$(realpath -s "$python")
shift
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
compiler=g++ options=(-G Ninja)
if [[ $python -ef tools/arm/python ]]; then
  compiler=aarch64-linux-gnu-g++ folder+=-arm
  options=(-DCMAKE_SYSTEM_NAME=Linux -DCMAKE_SYSTEM_PROCESSOR=aarch64)
fi
out=$PWD/build/$folder

# Another compiler's runtime has another name and cannot be loaded ahead of Python as simply.
command -v "$compiler" >/dev/null || fail "the sanitized kernels need $compiler: install it"
# The C++ library, too: else the sanitizer finds nobody to pass exceptions on to.
runtime=
for name in "${libraries[@]}" libstdc++.so.6; do
  path=$("$compiler" -print-file-name="$name")
  [[ -e $path ]] || fail "$compiler has no $name: install the package of GCC that holds it"
  runtime+="${runtime:+ }$path"
done

PATH=$(dirname "$python"):$PATH
mkdir -p "$out"
cmake -S kernels -B "$out" "${options[@]}" -DCMAKE_CXX_COMPILER="$compiler" \
  -DEDGEDEC_SANITIZE="$sanitizers" -Wno-dev >"$out/cmake.log" || fail "cmake failed: see $out/cmake.log"
cmake --build "$out"

export SANITIZED_KERNELS=$out
# Python itself never frees all it has, so leaks say nothing here.
export ASAN_OPTIONS=detect_leaks=0 UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1
# What the threads of ONNX Runtime and BLAS wait for is not seen, so that they seem to race.
export TSAN_OPTIONS="halt_on_error=1 suppressions=$PWD/tools/sanitize/not_races.txt"
# Where addresses are random, older runtimes find no room for their own.
is_fixed=()
if [[ $sanitizers == thread ]] && setarch -R true 2>/dev/null; then is_fixed=(setarch -R); fi
# An emulator hands on its environment, and must not load it itself.
preload=LD_PRELOAD=$runtime
[[ $compiler == g++ ]] || preload=QEMU_SET_ENV=$preload
exec "${is_fixed[@]}" env "$preload" "$python" -c 'import runpy, sys
sys.path.insert(0, "tools/sanitize")
import sanitized_kernels
program = sys.argv[1] if sys.argv[1:] and sys.argv[1].endswith(".py") else ""
if not program or program.rpartition("/")[2].startswith("test_"):
    import pytest
    options = ["-p", "sanitized_kernels", "-p", "no:cacheprovider", "--capture=sys", "tests/kernels"]
    sys.exit(pytest.main([*options, *sys.argv[1:]]))
sanitized_kernels.use()
sys.argv = sys.argv[1:]
sys.path.insert(0, program.rpartition("/")[0])
runpy.run_path(program, run_name="__main__")' "$@"
