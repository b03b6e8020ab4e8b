# Job 7, attempt 1, as its runner starts it. By hand: bash command.sh
fail() { printf '%s\n' "$1" >&2; { printf '!%s' "$1" >&3; } 2>/dev/null; builtin exit 1; }
cd -- '/my work' || fail 'working folder /my work cannot be entered'
export CUDA_DEVICE_ORDER=PCI_BUS_ID
export CUDA_VISIBLE_DEVICES=0,2
record() {
    local IFS=' ' stat group
    mapfile -t stat </proc/$$/stat
    mapfile -t group </proc/$$/autogroup
    stat=(${stat[0]##*) })
    printf '%s %s %s\n' $$ "${stat[19]}" "${group[0]%% *}" >&4
}
{ record; printf . >&3; } 2>/dev/null; exec 3>&- 4>&-
exec bash -c 'cd '"'"'a b'"'"' && python t.py --cuda 0,2 | tee $HOME/log'
