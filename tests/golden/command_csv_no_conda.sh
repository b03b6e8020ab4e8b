# Job 7, attempt 1. The runner executes this file. To run it by hand: bash command.sh
fail() { printf '%s\n' "$2" >&2; { printf '!%s %s' "$1" "$2" >&3; } 2>/dev/null; builtin exit 1; }
cd -- /work || fail cwd_unreachable 'working folder /work cannot be entered'
fail conda_missing 'conda environment ml: conda was not found; pass its profile.d/conda.sh with --conda-sh'
export CUDA_DEVICE_ORDER=PCI_BUS_ID
export CUDA_VISIBLE_DEVICES=0,2
[ -e /data/t.py ] || fail script_missing 'script /data/t.py does not exist'
if [ -x "$CONDA_PREFIX"/bin/python ]; then python=python; else python=python3; fi
[ -x "$CONDA_PREFIX"/bin/"$python" ] || fail python_missing 'conda environment ml has no python (neither bin/python nor bin/python3)'
record() {
    local own
    mapfile -t own </proc/self/stat
    mapfile -t -O 1 own </proc/self/autogroup
    printf '%s\n' "${own[@]}" >&4
}
{ record || :; printf . >&3; } 2>/dev/null; exec 3>&- 4>&-
exec "$python" -u /data/t.py --lr 0.1 --name 'it'"'"'s; x' --cuda 0,2
