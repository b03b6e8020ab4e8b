# A conda.sh that behaves as the real one does in a shell that is not interactive, over the installation at
# $FAKE_CONDA_ROOT (`plant` in conda.py makes one). As there, a program decides and prints what this shell then
# evaluates. Like many real hooks, it reads variables that may be unset and runs commands that fail, so that
# `set -u` or `set -e` break it.

export CONDA_EXE="$FAKE_CONDA_ROOT/bin/conda"
export CONDA_PYTHON_EXE="$FAKE_CONDA_ROOT/bin/python"
export _CE_M='' _CE_CONDA=''
_fake_conda_program=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)/conda.py

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

_fake_conda_change() {
    local ask_conda
    ask_conda="$("$CONDA_PYTHON_EXE" -I -S "$_fake_conda_program" "$@")" || return
    : $ADDR2LINE_NEVER_SET
    [ -n "$_FAKE_CONDA_NEVER_SET" ] || false
    eval "$ask_conda"
    hash -r
}

conda() {
    case "$1 $2" in
        'activate '* | 'deactivate '*) _fake_conda_change "$@" ;;
        'env list' | 'info --envs') _fake_conda_list ;;
        *) printf 'fake conda: %s is not known\n' "$*" >&2; return 2 ;;
    esac
}

if [ -z "${CONDA_SHLVL+x}" ]; then
    export CONDA_SHLVL=0
    export PATH="$FAKE_CONDA_ROOT/condabin:$PATH"
fi
