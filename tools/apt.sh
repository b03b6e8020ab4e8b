# Functions to install Debian packages, for the scripts that source this file.

say() { printf 'setup: %s\n' "$*" >&2; }

as_root() {
    if [ "$(id -u)" = 0 ]; then
        "$@"
    else
        command -v sudo >/dev/null && sudo -n true 2>/dev/null && sudo -n "$@"
    fi
}

# Fails without a message if apt is missing or the user may not use it.
apt_install() {
    command -v apt-get >/dev/null && as_root true || return 1
    say "installing $*"
    local install=(env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@")
    # The package lists of a fresh machine are empty or outdated.
    as_root "${install[@]}" >/dev/null 2>&1 ||
        { as_root apt-get update -qq >/dev/null 2>&1 && as_root "${install[@]}" >/dev/null; }
}
