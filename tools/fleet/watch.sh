#!/usr/bin/env bash
# Measures a fleet and fails if anything became slower than a band allows. For CI.
#
#   tools/fleet/watch.sh FLEET BUNDLE HISTORY [LOW] [OPTIONS of `fleet bench`]
#
# HISTORY keeps every result. The result of a host is compared with its last one there; the first one
# has nothing to compare with. Exits with 1 if a ratio is below LOW (default 0.95), or if a host
# could not be measured.
set -euo pipefail

fleet=${1:?usage: watch.sh FLEET BUNDLE HISTORY [LOW] [OPTIONS]}
bundle=${2:?no BUNDLE} history=${3:?no HISTORY} low=${4:-0.95}
shift $(($# < 4 ? $# : 4))
mkdir -p "$history"
new=$(mktemp -d)
trap 'rm -rf "$new"' EXIT
code=0
edgedec fleet bench "$fleet" "$bundle" -o "$new" "$@" || code=1
noise=()
[[ " $* " == *" --allow-noise "* ]] && noise=(--allow-noise)
for result in "$new"/*.json; do
  [[ -e $result ]] || continue
  name=$(basename "$result")
  if compgen -G "$history/*-$name" >/dev/null; then
    edgedec compare "$result" --against-last "$history" --band "$low" "${noise[@]}" || code=1
  fi
  cp "$result" "$history/$(date -u +%Y%m%dT%H%M%SZ)-$name"
done
exit $code
