# Job 7, attempt 1, as its runner starts it. By hand: bash command.sh
fail() { printf '%s\n' "$1" >&2; { printf '!%s' "$1" >&3; } 2>/dev/null; exit 1; }
export CUDA_DEVICE_ORDER=PCI_BUS_ID
export CUDA_VISIBLE_DEVICES=0,2
cd -- '/my work' || fail 'working folder /my work cannot be entered'
unset CONDA_PREFIX CONDA_DEFAULT_ENV CONDA_SHLVL
[ -r /opt/conda.sh ] && . /opt/conda.sh
type conda >/dev/null 2>&1 || fail 'conda cannot be set up from /opt/conda.sh'
conda activate /envs/x
if [ $? -ne 0 ] || [ ! -d "$CONDA_PREFIX" ]; then
    names= known=
    while read -r first rest; do
        case $first in
            '' | '#'*) continue ;;
            /envs/x) known=yes ;;
        esac
        names="$names, $first"
    done < <(conda env list 2>/dev/null)
    [ -z "$known" ] || fail 'conda environment /envs/x could not be activated; its log says more'
    fail 'conda environment /envs/x does not exist; environments: '"${names#, }"
fi
{ printf . >&3; } 2>/dev/null; exec 3>&-
exec bash -c 'cd '"'"'a b'"'"' && python t.py --cuda 0,2 | tee $HOME/log'
