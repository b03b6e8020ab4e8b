# Job 7, attempt 1. The runner executes this file. To run it by hand: bash command.sh
fail() { printf '%s\n' "$2" >&2; { printf '!%s %s' "$1" "$2" >&3; } 2>/dev/null; builtin exit 1; }
cd -- /work || fail cwd_unreachable 'working folder /work cannot be entered'
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
unset CONDA_EXE CONDA_PYTHON_EXE _CE_CONDA _CE_M
[ -f '/my env/bin/activate' ] || fail environment_missing 'virtual environment /my env does not exist (no bin/activate in it)'
exit() {
    set -- "${1-$?}"
    [ "$BASH_SUBSHELL" -gt 0 ] ||
        fail environment_broken 'virtual environment /my env'": its hook ${BASH_SOURCE[1]} ended the shell (exit code $1)"
    builtin exit "$1"
}
unset VIRTUAL_ENV
VIRTUAL_ENV_DISABLE_PROMPT=1
. '/my env/bin/activate'
unset VIRTUAL_ENV_DISABLE_PROMPT
[ -d "$VIRTUAL_ENV" ] || fail environment_broken 'virtual environment /my env could not be activated; see the log of the job'
unset -f exit
export CUDA_DEVICE_ORDER=PCI_BUS_ID
export CUDA_VISIBLE_DEVICES=0,2
[ -e /data/t.py ] || fail script_missing 'script /data/t.py does not exist'
if [ -x "$VIRTUAL_ENV"/bin/python ]; then python=python; else python=python3; fi
[ -x "$VIRTUAL_ENV"/bin/"$python" ] || fail python_missing 'virtual environment /my env has no python (neither bin/python nor bin/python3)'
record() {
    local own
    mapfile -t own </proc/self/stat
    mapfile -t -O 1 own </proc/self/autogroup
    printf '%s\n' "${own[@]}" >&4
}
{ record || :; printf . >&3; } 2>/dev/null; exec 3>&- 4>&-
exec "$python" -u /data/t.py --lr 0.1 --name 'it'"'"'s; x' --cuda 0,2
