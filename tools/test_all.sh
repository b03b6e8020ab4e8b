#!/usr/bin/env bash
# Runs the whole suite with every Python from 3.10 to 3.13 that is on PATH or in pyenv, each in its own
# environment (.venv-3.X). A failure does not stop the other runs. The last lines show the result of each run.
#
#     tools/test_all.sh [options of pytest]
set -uo pipefail
cd "$(dirname "$0")/.."

# Prints the interpreter of a version, or nothing if there is only a pyenv shim without that version.
find_python() {
    local python
    for python in "python$1" "$HOME/.pyenv/versions/$1".*/bin/python "$HOME/.pyenv/versions/$1/bin/python"; do
        if [ "$("$python" -c 'import ensurepip, sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null)" = "$1" ]; then
            "$python" -c 'import sys; print(sys.executable)'
            return
        fi
    done
    return 1
}

summary=()
failed=0
found=0
for version in 3.10 3.11 3.12 3.13; do
    python=$(find_python "$version") || {
        summary+=("$version: not on this machine")
        continue
    }
    found=$((found + 1))
    printf '== Python %s (%s)\n' "$version" "$python"
    venv=.venv-$version
    if ! { [ -x "$venv/bin/python" ] || "$python" -m venv "$venv"; } ||
        ! "$venv/bin/python" -m pip install -qq --disable-pip-version-check -e '.[dev]'; then
        summary+=("$version: FAILED, no environment could be made")
        failed=1
        continue
    fi
    output=$(mktemp)
    if "$venv/bin/python" -m pytest -n 4 --dist worksteal -q -p no:cacheprovider "$@" 2>&1 | tee "$output"; then
        word=passed
    else
        word=FAILED
        failed=1
    fi
    summary+=("$version: $word, $("$venv/bin/python" -V), $(tail -n 1 "$output" | sed 's/\x1b\[[0-9;]*m//g')")
    rm -f "$output"
done
printf '%s\n' "" "${summary[@]}"
if [ "$found" = 0 ]; then
    printf 'no Python from 3.10 to 3.13 was found\n'
    exit 1
fi
exit "$failed"
