#!/usr/bin/env bash
# Builds the kernels with GCC's address and undefined-behaviour sanitizers into build/sanitize and
# runs their tests against that library, or a program. The first fault ends the run. The second time is
# quick: only what changed is compiled. Usage: tools/sanitize/run.sh PYTHON [PYTEST-ARGUMENT...]
# or tools/sanitize/run.sh PYTHON PROGRAM.py [ARGUMENT...]
set -euo pipefail

python=$(realpath -s "$(command -v "${1:?usage: tools/sanitize/run.sh PYTHON [ARGUMENT...]}")")
shift
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
here=tools/sanitize
out=$PWD/build/sanitize

fail() {
  echo "$1" >&2
  exit 1
}

# Another compiler's runtime has another name and cannot be loaded ahead of Python as simply.
command -v g++ >/dev/null || fail "the sanitized kernels need g++: install it"
# The C++ library, too: else the sanitizer finds nobody to pass exceptions on to.
runtime=("$(g++ -print-file-name=libasan.so)" "$(g++ -print-file-name=libstdc++.so.6)")
[[ -e ${runtime[0]} ]] || fail "g++ has no libasan: install the package of GCC that holds it"

PATH=$(dirname "$python"):$PATH
mkdir -p "$out"
cmake -S kernels -B "$out" -G Ninja -DCMAKE_CXX_COMPILER=g++ -DEDGEDEC_SANITIZE=ON \
  -Wno-dev >"$out/cmake.log" || fail "cmake failed: see build/sanitize/cmake.log"
cmake --build "$out"

command=(-m pytest -p sanitized_kernels -p no:cacheprovider --capture=sys tests/kernels "$@")
[[ ${1-} == *.py ]] && command=(-c 'import runpy, sys, sanitized_kernels
sanitized_kernels.use()
sys.argv = sys.argv[1:]
sys.path.insert(0, sys.argv[0].rpartition("/")[0])
runpy.run_path(sys.argv[0], run_name="__main__")' "$@")

# Python itself never frees all it has, so leaks say nothing here.
LD_PRELOAD="${runtime[*]}" \
  ASAN_OPTIONS=detect_leaks=0 \
  UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1 \
  PYTHONPATH=$here \
  exec "$python" "${command[@]}"
