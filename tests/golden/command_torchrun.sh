# Job 7, attempt 1. The runner executes this file. To run it by hand: bash command.sh
fail() { printf '%s\n' "$2" >&2; { printf '!%s %s' "$1" "$2" >&3; } 2>/dev/null; builtin exit 1; }
cd -- /work || fail cwd_unreachable 'working folder /work cannot be entered'
export CUDA_DEVICE_ORDER=PCI_BUS_ID
export CUDA_VISIBLE_DEVICES=0,2
[ -e /data/t.py ] || fail script_missing 'script /data/t.py does not exist'
if type -P python >/dev/null; then python=python; else python=python3; fi
type -P "$python" >/dev/null || fail python_missing 'neither python nor python3 is on the PATH of the job'
if type -P torchrun >/dev/null; then torchrun=(torchrun); else
    torchrun=("$python" -u -m torch.distributed.run)
    "$python" -c 'import importlib.util as u, sys; sys.exit(u.find_spec("torch") is None)' 2>/dev/null ||
        fail torchrun_missing 'torchrun is not on the PATH of the job, and its python has no torch'
fi
record() {
    local own
    mapfile -t own </proc/self/stat
    mapfile -t -O 1 own </proc/self/autogroup
    printf '%s\n' "${own[@]}" >&4
}
{ record || :; printf . >&3; } 2>/dev/null; exec 3>&- 4>&-
exec "${torchrun[@]}" --standalone --nnodes=1 --nproc_per_node=2 /data/t.py --lr 0.1 --name 'it'"'"'s; x'
