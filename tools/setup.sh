#!/usr/bin/env bash
# Creates .venv with the package and its tools, and installs the Debian packages given as arguments:
#
#     tools/setup.sh screen --optional tmux
#
# Skips what is already done. If a package cannot be installed, the script prints the command to run by hand
# and stops. For packages after --optional, it prints the command and continues.
set -euo pipefail
cd "$(dirname "$0")/.."
here=$PWD
stamp=.venv/.installed
folder=.venv/.folder

. tools/apt.sh

programs() {
    local need=required program
    for program in "$@"; do
        if [ "$program" = --optional ]; then
            need=optional
        elif ! command -v "$program" >/dev/null && ! apt_install "$program"; then
            say "$program is missing and could not be installed; run: sudo apt-get install $program"
            [ "$need" = optional ] || exit 1
        fi
    done
}

suitable() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null; }

# Prints the newest Python that can create a virtual environment; Debian ships that in a separate package.
find_python() {
    local python found=
    for python in python3.13 python3.12 python3.11 python3.10 python3; do
        if suitable "$python"; then
            found=${found:-$python}
            if "$python" -c 'import ensurepip, venv' 2>/dev/null; then
                printf '%s\n' "$python"
                return
            fi
        fi
    done
    if [ -z "$found" ]; then
        say "Python 3.10 or newer is needed and none was found; run: sudo apt-get install python3 python3-venv"
        exit 1
    fi
    local version
    version=$("$found" -c 'import sys; print(f"python{sys.version_info[0]}.{sys.version_info[1]}")')
    if ! apt_install "$version-venv"; then
        say "$found cannot make a virtual environment; run: sudo apt-get install $version-venv"
        exit 1
    fi
    printf '%s\n' "$found"
}

usable() { suitable .venv/bin/python && .venv/bin/python -c 'import pip' 2>/dev/null; }

# Identifies what the environment was made from. This includes the folder, whose full path scripts contain.
made_from() { { printf '%s\n' "$here"; cat pyproject.toml; } | cksum; }

environment() {
    if [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$(made_from)" ] && usable; then
        return
    fi
    if ! usable || { [ -f "$folder" ] && [ "$(cat "$folder")" != "$here" ]; }; then
        if [ -d .venv ] && [ ! -f "$folder" ]; then
            say "$here/.venv was not made by this script and lacks Python 3.10 or newer with pip: remove it"
            exit 1
        fi
        local python
        python=$(find_python)
        say "making .venv with $("$python" --version)"
        rm -rf .venv
        mkdir .venv
        printf '%s\n' "$here" >"$folder"
        "$python" -m venv .venv
    fi
    say "installing the package into .venv"
    .venv/bin/python -m pip install -qq --disable-pip-version-check -e '.[dev]'
    made_from >"$stamp"
}

environment
programs "$@"
