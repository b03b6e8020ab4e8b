#!/bin/bash
# GNU Screen, but what it reports is not to be believed: it says that it started what it did not, that it
# failed where it started, starts a thing twice, takes its time, and lists no sessions. @REAL@ is the real one.
# It tells the truth until the file `lie` lies in the folder where the scheduler was started.
[ -e lie ] || exec @REAL@ "$@"
case " $* " in
*" -dmS "*)
    case $((RANDOM % 16)) in
    0) exit 0 ;;
    1) @REAL@ "$@"; exit 1 ;;
    2) @REAL@ "$@"; exec @REAL@ "$@" ;;
    3) sleep 0.5 ;;
    esac
    exec @REAL@ "$@"
    ;;
esac
echo "No Sockets found in /nowhere."
exit 1
