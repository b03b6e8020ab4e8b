#!/usr/bin/env bash
# Creates .venv-hf with Hugging Face's Trainer and PyTorch Lightning, for `make test-hf`. Needs .venv.
#
# torch comes from Debian's package python3-torch (CPU only), because that of PyPI brings gigabytes of CUDA; the
# environment therefore uses Debian's Python and sees its packages.
set -euo pipefail
cd "$(dirname "$0")/.."
. tools/apt.sh
stamp=.venv-hf/.installed
python=/usr/bin/python3

# pip 24.1 and newer refuse the metadata of pytorch-lightning 1.6.5, the last that works with torch 1.13 on
# Python 3.11. Newer versions of rich do not work with its bar.
packages=(
    transformers==4.44.2 accelerate==0.33.0 'numpy<2'
    pytorch-lightning==1.6.5 torchmetrics==0.11.4 rich==12.6.0
)

made_from() { { pwd; cat tools/setup_hf.sh; "$python" --version; } | cksum; }

has_torch() { "$python" -c 'import torch' 2>/dev/null; }

if ! has_torch && ! { apt_install python3-torch && has_torch; }; then
    say "python3-torch is missing and could not be installed; it needs Debian or Ubuntu: sudo apt-get install python3-torch"
    exit 1
fi
if [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$(made_from)" ] && .venv-hf/bin/python -c '' 2>/dev/null; then
    exit
fi
say "making .venv-hf with $("$python" --version) and torch $("$python" -c 'import torch; print(torch.__version__)')"
rm -rf .venv-hf
# Debian's python3 can lack ensurepip, so the pip of .venv installs the pip.
"$python" -m venv --without-pip --system-site-packages .venv-hf
.venv/bin/python -m pip --python .venv-hf/bin/python install -qq --disable-pip-version-check 'pip<24.1'
say "installing ${packages[*]} into .venv-hf"
.venv-hf/bin/python -m pip install -qq --disable-pip-version-check "${packages[@]}"
made_from >"$stamp"
