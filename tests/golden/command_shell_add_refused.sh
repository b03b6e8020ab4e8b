# Job 7, attempt 1, as its runner starts it. By hand: bash command.sh
fail() { printf '%s\n' "$2" >&2; { printf '!%s %s' "$1" "$2" >&3; } 2>/dev/null; builtin exit 1; }
cd -- '/my work' || fail cwd_unreachable 'working folder /my work cannot be entered'
export CUDA_DEVICE_ORDER=PCI_BUS_ID
export CUDA_VISIBLE_DEVICES=0,2
fail cuda_option_unplaced 'cuda=add: cannot tell where --cuda belongs in this command; write --cuda 0,2 in its place'
