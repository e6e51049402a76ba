#!/usr/bin/env bash
# Makes build/arm, where tools/arm/python finds what it runs under user-mode emulation:
#
#   tree/      an aarch64 Debian's Python and C library, unpacked and never booted
#   cpu/NAME/  what a program sees as / on each emulated processor
#   wheels/    edgedec's dependencies and its test tools, as aarch64 wheels
#   package/   edgedec itself, installed from its wheel
#
# Stamps make the second time quick. Usage: tools/arm/build.sh PYTHON, one with pip and
# what the extra `release` names.
set -euo pipefail

python=$(realpath -s "$(command -v "${1:?usage: tools/arm/build.sh PYTHON}")")
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
here=tools/arm
out=$PWD/build/arm
suite=bookworm  # a Debian whose Python is the oldest that edgedec supports ...
python_version=3.11  # ... namely this
PATH=$PATH:/usr/sbin  # where debootstrap is

# Emulated processor, and the features its /proc/cpuinfo would name. ONNX Runtime trusts that file:
# without it, or with the host's, it crashes; with features the processor lacks, too.
processors=(
  "max         | fp asimd aes crc32 atomics fphp asimdhp asimdrdm asimddp i8mm"  # all that QEMU has
  "neoverse-n1 | fp asimd aes crc32 atomics fphp asimdhp asimdrdm asimddp"       # no i8mm
  "cortex-a72  | fp asimd aes crc32"                                             # no dotprod either
)

main() {
  check_tools
  mkdir -p "$out"
  once tree "$here/build.sh" make_tree
  once cpu "$here/build.sh" make_cpus
  write_requirements
  once wheels "$out/requirements.txt" make_wheels
  tools/release/install_for.sh "$python" manylinux_2_28_aarch64 "$python_version" "$out/package"
}

check_tools() {
  local missing=() tool
  for tool in qemu-aarch64-static:qemu-user-static debootstrap:debootstrap \
    dpkg-deb:dpkg; do
    command -v "${tool%%:*}" >/dev/null || missing+=("${tool##*:}")
  done
  ((${#missing[@]} == 0)) ||
    fail "the ARM tests need Debian packages: apt-get install ${missing[*]}"
}

fail() {
  echo "$1" >&2
  exit 1
}

# once NAME INPUT FUNCTION: runs the function unless it succeeded since INPUT changed.
once() {
  local made=$out/$1.made
  [[ $made -nt $2 ]] && return
  echo "build/arm: $1"
  rm -rf "${made:?}" "${out:?}/$1"
  "$3"
  touch "$made"
}

# Only unpacked: configuring a Debian would mean running it as root, with emulation in the kernel.
make_tree() {
  local as_root=() archive
  if ((EUID != 0)); then
    command -v fakeroot >/dev/null || fail "debootstrap needs root, or: apt-get install fakeroot"
    as_root=(fakeroot)
  fi
  "${as_root[@]}" debootstrap --arch=arm64 --variant=minbase --download-only \
    --include=python3,libstdc++6 "$suite" "$out/debian" >"$out/debootstrap.log" ||
    fail "debootstrap failed: see build/arm/debootstrap.log"
  mkdir -p "$out/tree"
  for archive in "$out"/debian/var/cache/apt/archives/*.deb; do
    dpkg-deb --fsys-tarfile "$archive" | tar --extract --directory "$out/tree" \
      --no-same-owner --no-same-permissions ./usr ./lib 2>/dev/null || true  # not all have both
  done
  rm -rf "${out:?}/debian"
  [[ -x $out/tree/usr/bin/python$python_version ]] ||
    fail "the aarch64 Debian has no python$python_version: see build/arm/debootstrap.log"
}

# A program looks here first and then on the host, so only what differs from the host is here.
make_cpus() {
  local row name features folder file core
  for row in "${processors[@]}"; do
    IFS='|' read -r name features <<<"$row"
    folder=$out/cpu/${name// /}
    mkdir -p "$folder/proc" "$folder/sys/devices/system/cpu"
    ln -s ../../tree/usr "$folder/usr"
    ln -s ../../tree/lib "$folder/lib"
    for file in possible present; do echo 0-1 >"$folder/sys/devices/system/cpu/$file"; done
    for core in 0 1; do
      printf '%s\t: %s\n' processor $core BogoMIPS 100.00 Features "${features# }" \
        'CPU implementer' 0x41 'CPU architecture' 8 'CPU variant' 0x0 'CPU part' 0xd08 \
        'CPU revision' 0
      echo
    done >"$folder/proc/cpuinfo"
  done
}

# Left alone when equal, since most changes of pyproject.toml are no reason to fetch wheels.
write_requirements() {
  local file=$out/requirements.txt
  "$python" "$here/requirements.py" >"$file.new"
  cmp --silent "$file.new" "$file" || cp "$file.new" "$file"
  rm "$file.new"
}

# Wheels name the oldest C library they run on; pip takes only the names it is given. Conflicts with
# packages of the host's Python mean nothing.
make_wheels() {
  local platforms=() glibc
  for glibc in $(seq 17 36); do platforms+=(--platform "manylinux_2_${glibc}_aarch64"); done
  "$python" -m pip --disable-pip-version-check install --quiet --target "$out/wheels" \
    --only-binary=:all: --implementation cp --python-version "$python_version" \
    "${platforms[@]}" --platform manylinux2014_aarch64 --no-warn-conflicts \
    --requirement "$out/requirements.txt"
}

main
