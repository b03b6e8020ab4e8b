#!/bin/bash
# Stands in for GNU Screen and reports falsehoods: success where it started nothing, failure where it started
# something; it also starts things twice, is slow, and lists no sessions. @REAL@ is the real one. It behaves
# correctly until the file `lie` exists in the folder where the scheduler was started.
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
