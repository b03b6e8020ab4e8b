# A conda.sh that behaves like the real one in a non-interactive shell, over $FAKE_CONDA_ROOT: environments are
# the folders under envs/. Hooks in etc/conda/activate.d are sourced, as conda does; like many real ones, this
# file reads variables that may be unset and runs commands that fail, so `set -u` or `set -e` break it.

export CONDA_EXE="$FAKE_CONDA_ROOT/bin/conda"
export _CE_CONDA=''

_fake_conda_list() {
    printf '# conda environments:\n#\n'
    printf '%-24s %s\n' base "$FAKE_CONDA_ROOT"
    local folder
    for folder in "$FAKE_CONDA_ROOT"/envs/*/; do
        [ -d "$folder" ] || continue
        folder=${folder%/}
        printf '%-24s %s\n' "${folder##*/}" "$folder"
    done
    printf '\n'
}

_fake_conda_activate() {
    local name=${1-base} prefix
    case $name in
        base) prefix=$FAKE_CONDA_ROOT ;;
        /*) prefix=$name ;;
        *) prefix=$FAKE_CONDA_ROOT/envs/$name ;;
    esac
    if [ ! -d "$prefix" ]; then
        printf '\nEnvironmentNameNotFound: Could not find conda environment: %s\n' "$name" >&2
        printf 'You can list all discoverable environments with `conda info --envs`.\n\n' >&2
        return 1
    fi
    # What activation hooks of real packages do: a variable that nobody set, a command that fails.
    : $ADDR2LINE_NEVER_SET
    [ -n "$_FAKE_CONDA_NEVER_SET" ] || false
    export CONDA_PREFIX="$prefix" CONDA_DEFAULT_ENV="$name" CONDA_SHLVL=$((${CONDA_SHLVL:-0} + 1))
    export CONDA_PROMPT_MODIFIER="($name) "
    export PATH="$prefix/bin:$PATH"
    local hook
    for hook in "$prefix"/etc/conda/activate.d/*.sh; do
        [ -f "$hook" ] && . "$hook"
    done
    return 0
}

conda() {
    case "$1 $2" in
        'activate '*) shift; _fake_conda_activate "$@" ;;
        'env list' | 'info --envs') _fake_conda_list ;;
        *) printf 'fake conda: %s is not known\n' "$*" >&2; return 2 ;;
    esac
}

if [ -z "${CONDA_SHLVL+x}" ]; then
    export CONDA_SHLVL=0
    export PATH="$FAKE_CONDA_ROOT/condabin:$PATH"
fi
