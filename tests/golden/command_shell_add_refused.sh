# Job 7, attempt 1. The runner executes this file. To run it by hand: bash command.sh
fail() { printf '%s\n' "$2" >&2; { printf '!%s %s' "$1" "$2" >&3; } 2>/dev/null; builtin exit 1; }
cd -- '/my work' || fail cwd_unreachable 'working folder /my work cannot be entered'
export CUDA_DEVICE_ORDER=PCI_BUS_ID
export CUDA_VISIBLE_DEVICES=0,2
fail cuda_option_unplaced 'cuda=add: it is unclear where --cuda belongs in this command; write --cuda 0,2 where it belongs'
