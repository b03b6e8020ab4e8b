# Functions to install Debian packages, for the scripts that source this file.

say() { printf 'setup: %s\n' "$*" >&2; }

as_root() {
    if [ "$(id -u)" = 0 ]; then
        "$@"
    else
        command -v sudo >/dev/null && sudo -n true 2>/dev/null && sudo -n "$@"
    fi
}

# Runs apt-get. Waits up to five minutes while another program, such as an automatic update, holds one of apt's
# locks. (DPkg::Lock::Timeout does not cover the locks of the package lists and of the downloads.)
apt_get() {
    local errors left_s=300
    until errors=$(as_root env LC_ALL=C DEBIAN_FRONTEND=noninteractive apt-get -qq "$@" 2>&1 >/dev/null); do
        if [[ $errors != *"Could not get lock"* ]] || [ "$left_s" = 0 ]; then
            printf '%s\n' "$errors" >&2
            return 1
        fi
        [ "$left_s" != 300 ] || say "waiting for another program that uses apt"
        sleep 5
        left_s=$((left_s - 5))
    done
}

# Fails without a message if apt is missing or the user may not use it.
apt_install() {
    command -v apt-get >/dev/null && as_root true || return 1
    say "installing $*"
    apt_get update || true # the package lists of a fresh machine are empty or outdated
    apt_get install -y --no-install-recommends "$@"
}
