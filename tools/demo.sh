#!/usr/bin/env bash
# Runs all jobs of jobs.txt.example in Screen and prints the final table. The jobs run on the GPUs of this
# machine if all of them are idle, otherwise on 4 simulated GPUs. All files are in the temporary folder demo/.
#
#     tools/demo.sh [SIMULATE]      with SIMULATE, always simulates GPUs, as `start --simulate SIMULATE` does
set -euo pipefail
cd "$(dirname "$0")/.."
python=.venv/bin/python
state=demo/gpu_scheduler_state.json

# An interrupted demo may have left a scheduler or jobs behind.
if [ -e "$state" ]; then
    "$python" scheduler.py stop --jobs --state-file "$state" || true
fi
rm -rf demo
mkdir demo

simulate=${1:-}
if [ -z "$simulate" ]; then
    gpus=$("$python" tools/idle_gpus.py) || gpus=0
    [ "$gpus" != 0 ] || simulate=4
fi
if [ -n "$simulate" ]; then
    gpus=$("$python" tools/idle_gpus.py --simulate "$simulate")
    options=(--simulate "$simulate")
    printf 'demo: %s simulated GPUs\n' "$gpus"
else
    options=()
    printf 'demo: %s GPUs of this machine\n' "$gpus"
fi

# A comment at the end of a line says how many GPUs the line needs.
awk -v gpus="$gpus" '
    match($0, /# needs [0-9]+ GPUs$/) && substr($0, RSTART + 8) + 0 > gpus { print "# " $0; next }
    { print }
' jobs.txt.example >demo/jobs.txt
skipped=$(grep -c '^# [^#].*# needs [0-9]* GPUs$' demo/jobs.txt || true)
[ "$skipped" = 0 ] || printf 'demo: left out %s lines that need more GPUs\n' "$skipped"

code=0
"$python" scheduler.py start --jobs-file demo/jobs.txt --state-file "$state" --log-dir demo/logs \
    --screen --drain ${options[@]+"${options[@]}"} || code=$?
printf '\n'
"$python" scheduler.py status --all --state-file "$state"
printf '\ndemo: these were the jobs of jobs.txt.example; their logs are in demo/logs\n'
printf 'demo: next: copy jobs.txt.example to jobs.txt, write your own jobs there, and run `python3 scheduler.py start%s`\n' \
    "${options[*]+ ${options[*]}}"
exit "$code"
