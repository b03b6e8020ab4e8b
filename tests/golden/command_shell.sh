# Job 7, attempt 1. The runner executes this file. To run it by hand: bash command.sh
fail() { printf '%s\n' "$2" >&2; { printf '!%s %s' "$1" "$2" >&3; } 2>/dev/null; builtin exit 1; }
cd -- '/my work' || fail cwd_unreachable 'working folder /my work cannot be entered'
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
