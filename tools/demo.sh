#!/usr/bin/env bash
# The main job, whole: jobs.txt.example on the GPUs of this machine if all are idle, else on 4 simulated ones,
# in Screen, until every line has run; then the final table. Works in the throw-away folder demo/.
#
#     tools/demo.sh [SIMULATE]      SIMULATE as for `start --simulate`: simulates in any case
set -euo pipefail
cd "$(dirname "$0")/.."
python=.venv/bin/python
state=demo/gpu_scheduler_state.json

# An earlier demo that was cut off may have left a scheduler or jobs behind.
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

# Lines say at their end how many GPUs they need.
awk -v gpus="$gpus" '
    match($0, /# needs [0-9]+ GPUs$/) && substr($0, RSTART + 8) + 0 > gpus { print "# " $0; next }
    { print }
' jobs.txt.example >demo/jobs.txt
skipped=$(grep -c '^# [^#].*# needs [0-9]* GPUs$' demo/jobs.txt || true)
[ "$skipped" = 0 ] || printf 'demo: %s lines left out that need more GPUs\n' "$skipped"

code=0
"$python" scheduler.py start --jobs-file demo/jobs.txt --state-file "$state" --log-dir demo/logs \
    --screen --drain ${options[@]+"${options[@]}"} || code=$?
printf '\n'
"$python" scheduler.py status --all --state-file "$state"
exit "$code"
