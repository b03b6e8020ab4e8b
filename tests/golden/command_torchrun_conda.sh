# Job 7, attempt 1, as its runner starts it. By hand: bash command.sh
fail() { printf '%s\n' "$1" >&2; { printf '!%s' "$1" >&3; } 2>/dev/null; exit 1; }
export CUDA_DEVICE_ORDER=PCI_BUS_ID
export CUDA_VISIBLE_DEVICES=0,2
cd -- /work || fail 'working folder /work cannot be entered'
unset CONDA_PREFIX CONDA_DEFAULT_ENV CONDA_SHLVL
[ -r /opt/conda.sh ] && . /opt/conda.sh
type conda >/dev/null 2>&1 || fail 'conda cannot be set up from /opt/conda.sh'
conda activate ml
if [ $? -ne 0 ] || [ ! -d "$CONDA_PREFIX" ]; then
    names= known=
    while read -r first rest; do
        case $first in
            '' | '#'*) continue ;;
            ml) known=yes ;;
        esac
        names="$names, $first"
    done < <(conda env list 2>/dev/null)
    [ -z "$known" ] || fail 'conda environment ml could not be activated; its log says more'
    fail 'conda environment ml does not exist; environments: '"${names#, }"
fi
[ -e /data/t.py ] || fail 'script /data/t.py does not exist'
if type -P torchrun >/dev/null; then torchrun=(torchrun); else
    if type -P python >/dev/null; then python=python; else python=python3; fi
    torchrun=("$python" -u -m torch.distributed.run)
    "$python" -c 'import importlib.util as u, sys; sys.exit(u.find_spec("torch") is None)' 2>/dev/null ||
        fail 'torchrun is not on the PATH of the job, and its python has no torch'
fi
{ printf . >&3; } 2>/dev/null; exec 3>&-
exec "${torchrun[@]}" --standalone --nnodes=1 --nproc_per_node=1 /data/t.py --lr 0.1 --name 'it'"'"'s; x' --cuda 0,2
