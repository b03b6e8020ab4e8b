#!/usr/bin/env bash
# Creates .venv with the package, and installs the Debian packages given as arguments:
#
#     tools/setup.sh [--dev] screen --optional tmux
#
# With --dev, .venv also gets the developer tools. Skips what is already done. If packages cannot be installed,
# the script prints the one command to run by hand, and stops unless only packages after --optional are missing.
set -euo pipefail
cd "$(dirname "$0")/.."
here=$PWD
folder=.venv/.folder
extra=
if [ "${1:-}" = --dev ]; then
    extra='[dev]'
    shift
fi

. tools/apt.sh

# The Debian packages that are missing.
required=()
optional=()

find_programs() {
    local list=required program
    for program in "$@"; do
        if [ "$program" = --optional ]; then
            list=optional
        elif ! command -v "$program" >/dev/null; then
            [ "$list" = optional ] && optional+=("$program") || required+=("$program")
        fi
    done
}

suitable() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null; }

# Sets `python` to the newest Python that can create a virtual environment; Debian ships that in a separate package.
find_python() {
    local candidate
    python=
    for candidate in python3.13 python3.12 python3.11 python3.10 python3; do
        if suitable "$candidate"; then
            python=${python:-$candidate}
            if "$candidate" -c 'import ensurepip, venv' 2>/dev/null; then
                python=$candidate
                return
            fi
        fi
    done
    if [ -z "$python" ]; then
        python=python3
        required+=(python3-venv)
    else
        required+=("$("$python" -c 'import sys; print("python%d.%d-venv" % sys.version_info[:2])')")
    fi
}

install_packages() {
    local packages=("${required[@]}" "${optional[@]}")
    if [ "${#packages[@]}" = 0 ] || apt_install "${packages[@]}"; then
        return
    fi
    say "missing: ${packages[*]}; run: sudo apt-get install ${packages[*]}"
    if [ "${#required[@]}" != 0 ]; then
        exit 1
    fi
}

usable() { suitable .venv/bin/python && .venv/bin/python -c 'import pip' 2>/dev/null; }

# Identifies what the environment was made from. This includes the folder, whose full path scripts contain.
made_from() { { printf '%s\n' "$here"; cat pyproject.toml; } | cksum; }

# An environment with the developer tools has everything that the package needs.
installed() {
    local stamp
    for stamp in ".venv/.installed$extra" '.venv/.installed[dev]'; do
        if [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$(made_from)" ]; then
            return
        fi
    done
    return 1
}

make_environment() {
    if ! suitable "$python"; then
        say "Python 3.10 or newer is needed and none was found"
        exit 1
    fi
    say "making .venv with $("$python" --version)"
    rm -rf .venv
    mkdir .venv
    printf '%s\n' "$here" >"$folder"
    "$python" -m venv .venv
}

is_usable=
if usable && { [ ! -f "$folder" ] || [ "$(cat "$folder")" = "$here" ]; }; then
    is_usable=1
elif [ -d .venv ] && [ ! -f "$folder" ]; then
    say "$here/.venv was not made by this script and lacks Python 3.10 or newer with pip: remove it"
    exit 1
else
    find_python
fi
find_programs "$@"
install_packages
[ -n "$is_usable" ] || make_environment
if ! installed; then
    say "installing the package into .venv"
    .venv/bin/python -m pip install -qq --disable-pip-version-check -e ".$extra"
    made_from >".venv/.installed$extra"
fi
