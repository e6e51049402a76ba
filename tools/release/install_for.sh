#!/usr/bin/env bash
# Installs the wheel for another platform into a folder, and builds it first if a source is newer.
# Usage: tools/release/install_for.sh PYTHON TAG PYTHON_VERSION FOLDER. PYTHON has what the extra
# `release` names; TAG is the platform of a wheel, PYTHON_VERSION that of the Python to run there.
set -euo pipefail

python=${1:?} tag=${2:?} python_version=${3:?} folder=${4:?}
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

mapfile -t sources < <(sed -n 's|^"edgedec.*" = "\(.*\)"|\1|p' pyproject.toml)
mkdir -p build dist
wheel=$(find dist -name "*-$tag.whl" | head -1)
if [[ -z $wheel || -n $(find pyproject.toml "${sources[@]}" -type f -newer "$wheel" \
  -not -name '*.pyc' -print -quit) ]]; then
  echo "building the wheel for $tag"
  rm -f dist/*-"$tag".whl
  log=build/$tag.log
  "$python" tools/release/build.py "$tag" >"$log" 2>&1 || {
    echo "the wheel for $tag could not be built: see $log" >&2
    exit 1
  }
fi
rm -rf "$folder"
"$python" -m pip --disable-pip-version-check install --quiet --target "$folder" --no-deps \
  --only-binary=:all: --implementation cp --python-version "$python_version" \
  --platform "$tag" --no-warn-conflicts dist/*-"$tag".whl
