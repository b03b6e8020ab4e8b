# Job 7, attempt 1. The runner executes this file. To run it by hand: bash command.sh
fail() { printf '%s\n' "$2" >&2; { printf '!%s %s' "$1" "$2" >&3; } 2>/dev/null; builtin exit 1; }
cd -- '/my work' || fail cwd_unreachable 'working folder /my work cannot be entered'
exit() {
    set -- "${1-$?}"
    [ "$BASH_SUBSHELL" -gt 0 ] ||
        fail environment_broken "conda environment ${CONDA_DEFAULT_ENV:-$CONDA_PREFIX}"": its hook ${BASH_SOURCE[1]} ended the shell (exit code $1)"
    builtin exit "$1"
}
if [ -n "$CONDA_PREFIX" ]; then
    [ -r /opt/conda.sh ] && . /opt/conda.sh
    while [ "${CONDA_SHLVL:-0}" -gt 0 ] 2>/dev/null; do
        set -- "$CONDA_SHLVL"
        type conda >/dev/null 2>&1 && conda deactivate
        [ "${CONDA_SHLVL:-0}" -lt "$1" ] && continue
        printf '%s\n' "conda environment $CONDA_PREFIX cannot be deactivated; its variables may remain" >&2
        break
    done
fi
unset CONDA_PREFIX CONDA_DEFAULT_ENV CONDA_PROMPT_MODIFIER CONDA_SHLVL
unset "${!CONDA_PREFIX_@}" "${!CONDA_STACKED_@}" "${!__CONDA_SHLVL_@}"
[ -r /opt/conda.sh ] && . /opt/conda.sh
type conda >/dev/null 2>&1 || fail environment_broken 'conda cannot be set up from /opt/conda.sh'
conda activate /envs/x
if [ $? -ne 0 ] || [ ! -d "$CONDA_PREFIX" ]; then
    names= known=
    while read -r first rest; do
        case $first in
            '' | '#'*) continue ;;
            /envs/x) known=yes ;;
        esac
        names="$names, $first"
    done < <(conda env list 2>/dev/null)
    [ -z "$known" ] || fail environment_broken 'conda environment /envs/x could not be activated; see the log of the job'
    fail environment_missing 'conda environment /envs/x does not exist; environments: '"${names#, }"
fi
unset -f exit
export CUDA_DEVICE_ORDER=PCI_BUS_ID
export CUDA_VISIBLE_DEVICES=0,2
record() {
    local own
    mapfile -t own </proc/self/stat
    mapfile -t -O 1 own </proc/self/autogroup
    printf '%s\n' "${own[@]}" >&4
}
{ record || :; printf . >&3; } 2>/dev/null; exec 3>&- 4>&-
exec bash -o pipefail -c 'cd '"'"'a b'"'"' && python t.py --cuda 0,2 | tee $HOME/log'
