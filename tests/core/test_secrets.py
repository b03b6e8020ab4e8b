"""Hiding secrets in commands, jobs-file lines and messages."""

from __future__ import annotations

import json
import shlex
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_scheduler.core.text.formatting import HIDDEN, masked, masked_json, masked_values, masked_words

HF, HEX = "hf_" + "aB3dE" * 6, "0123456789" * 4


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        # Options that are recognized by the end of their names.
        ("t.py --api-key S3 --lr 1", "t.py --api-key (hidden) --lr 1"),
        ("t.py --openai_api_key=S3 --lr 1", "t.py --openai_api_key=(hidden) --lr 1"),
        ("t.py --client-secret S3", "t.py --client-secret (hidden)"),
        ("t.py --db_password S3", "t.py --db_password (hidden)"),
        ("t.py --PASSWORD S3", "t.py --PASSWORD (hidden)"),
        ("t.py --access-token S3 --auth_token=S3 --hf-token S3",
         "t.py --access-token (hidden) --auth_token=(hidden) --hf-token (hidden)"),
        ("t.py --wandb.api_key\tS3", "t.py --wandb.api_key\t(hidden)"),
        ("t.py +wandb.api_key=S3 lr=1", "t.py +wandb.api_key=(hidden) lr=1"),
        ("t.py --token S3 --lr 1", "t.py --token (hidden) --lr 1"),
        ("t.py --passwd S3", "t.py --passwd (hidden)"),
        ("t.py --openai-key S3 --slack_token S3", "t.py --openai-key (hidden) --slack_token (hidden)"),
        ("t.py --aws_secret_access_key S3", "t.py --aws_secret_access_key (hidden)"),
        ("t.py --access_key S3 --github-token S3", "t.py --access_key (hidden) --github-token (hidden)"),
        ("t.py --wandb-key S3 --hub_token=S3", "t.py --wandb-key (hidden) --hub_token=(hidden)"),
        ("curl -H 'Authorization: Bearer S3' x", "curl -H 'Authorization: Bearer (hidden)' x"),
        ('curl -H "X-Api-Key: S3" x', 'curl -H "X-Api-Key: (hidden)" x'),
        ("curl -H 'PRIVATE-TOKEN: S3' x", "curl -H 'PRIVATE-TOKEN: (hidden)' x"),
        ("curl -H 'api-key: S3' x", "curl -H 'api-key: (hidden)' x"),
        # Quoted values, quoted words and quoted CSV fields.
        ("t.py --secret 'S3 x' --lr 1", "t.py --secret (hidden) --lr 1"),
        ('t.py --secret="S3 \\" S3" --lr 1', "t.py --secret=(hidden) --lr 1"),
        ("t.py --secret S3\\ S3 --lr 1", "t.py --secret (hidden) --lr 1"),
        ("t.py '--secret=S3 x' --lr 1", "t.py '--secret=(hidden)' --lr 1"),
        (shlex.join(["t.py", "--secret=S3's S3", "x"]), "t.py '--secret=(hidden)' x"),
        ("t.py '--secret' 'S3 x' --lr 1", "t.py '--secret' (hidden) --lr 1"),
        ("t.py --secret 'S3 is not closed", "t.py --secret (hidden)"),
        ("bash -c 'python t.py --secret S3'", "bash -c 'python t.py --secret (hidden)'"),
        ("0,t.py,env,--api-key S3,0-3", "0,t.py,env,--api-key (hidden),0-3"),
        ('0,t.py,env,"--secret ""S3 S3"" --lr 1,2",0', '0,t.py,env,"--secret (hidden) --lr 1,2",0'),
        ('{"api_key": "S3", "lr": 1}', '{"api_key": (hidden), "lr": 1}'),
        (r't.py "{\"api_key\": \"S3 S3\", \"lr\": 1}"', r't.py "{\"api_key\": (hidden), \"lr\": 1}"'),
        ('0,t.py,,"--c {""api_key"": ""S3 S3"", ""lr"": 1}",0',
         '0,t.py,,"--c {""api_key"": (hidden), ""lr"": 1}",0'),
        # Secrets inside the scheduler's own messages.
        ("`t.py --hf_token S3`: malformed", "`t.py --hf_token (hidden)`: malformed"),
        ("/data/api_key=S3: No such file", "/data/api_key=(hidden): No such file"),
        # Variables.
        ("WANDB_API_KEY=S3 python t.py", "WANDB_API_KEY=(hidden) python t.py"),
        ("cd x && HF_TOKEN='S3 S3' python t.py", "cd x && HF_TOKEN=(hidden) python t.py"),
        ("env 'DB_PASS=S3 S3' python t.py", "env 'DB_PASS=(hidden)' python t.py"),
        ('bash -c "HF_TOKEN=S3 python t.py"', 'bash -c "HF_TOKEN=(hidden) python t.py"'),
        ("[env:HF_TOKEN=S3 vram=4G] x", "[env:HF_TOKEN=(hidden) vram=4G] x"),
        ("[vram=4 env:my_token=S3] x", "[vram=4 env:my_token=(hidden)] x"),
        ("[env:HF_TOKEN=S3,vram=4G] x", "[env:HF_TOKEN=(hidden)] x"),
        ("['env:HF_TOKEN=S3 S3' vram=4G] x", "['env:HF_TOKEN=(hidden)' vram=4G] x"),
        ("[env:HF_TOKEN=S3 x", "[env:HF_TOKEN=(hidden) x"),
        ('[env:HF_TOKEN="S3 S3 x', "[env:HF_TOKEN=(hidden)"),
        # Secrets that are recognized by their own format.
        (f"login {HF} now", "login (hidden) now"),
        ("sk-proj-" + "aB3" * 16, HIDDEN),
        ("x=sk-" + "aB3" * 16, "x=(hidden)"),
        ("ghp_" + "aB3" * 12, HIDDEN),
        ("github_pat_" + "aB3" * 12, HIDDEN),
        ("glpat-" + "aB3-" * 6, HIDDEN),
        ("xoxb-1234567890-abcdef", HIDDEN),
        ("nvapi-" + "aB3" * 12, HIDDEN),
        ("AKIA" + "A1B2" * 4, HIDDEN),
        ("Bearer eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2ln", "Bearer (hidden)"),
        (f"wandb login {HEX}", "wandb login (hidden)"),
        (f"wandb login --relogin {HEX}", "wandb login --relogin (hidden)"),
        (f"t.py --wandb-key={HEX} x", "t.py --wandb-key=(hidden) x"),
        ("-----BEGIN RSA PRIVATE KEY-----\nS3", HIDDEN),
        ("git clone https://me:S3@host/x", "git clone https://me:(hidden)@host/x"),
        ("redis://:S3@host:1 x", "redis://:(hidden)@host:1 x"),
        ("ftp://me:S3/S@3@host/x", "ftp://me:(hidden)@host/x"),
    ],
)  # fmt: skip
def test_hides_secrets(text: str, shown: str) -> None:
    assert masked(text) == shown
    assert masked(shown) == shown
    assert masked(f"job 3: {text}") == f"job 3: {shown}"


@pytest.mark.parametrize(
    "text",
    [
        "t.py --max_new_tokens 64 --pad_token S3 --sort_key name --tokenizer bert --token_dim 3",
        "t.py --tokens 5 --num-keys=4 --secret-file f --password-file=/x --api-key-env NAME --key k",
        "t.py --ask-password --verbose",
        "t.py --tokenizer x --max-tokens 512 --key-frames 3 --eos-token S3 --token-type 1 --keys a",
        "curl -H 'Authorization: Bearer $TOKEN' x",
        "send `Authorization: Bearer TOKEN`; the owner makes one",
        "t.py --use_auth_token True --lr 1",
        "t.py --api-key $OPENAI_API_KEY",
        't.py --api-key="${KEY}"',
        "TOKENIZERS_PARALLELISM=false MAX_TOKENS=5 SORT_KEY=name PAD_TOKEN=x TOKEN_DIM=3 python t.py",
        "N_TOKENS=512 TRAIN_TOKENS=1B MAX_TOKENS_PER_BATCH=4096 t.py",
        "TOKEN_BUDGET=9 NUM_KEYS=4 KEY_DIM=3 PASS_AT_K=5 x",
        "max_tokens=5 model.token_dim=3 key=x python t.py",
        "apptainer exec --nv --pwd /work i.sif python t.py --run r8_learning_rate_0.001_batch_32_seed_1",
        "t.py npm_packages_of_the_whole_world_2024.json gsk_data_set_experiment_12_with_dropout_half",
        "t.py --out pypi-downloads-dataset-version-2024-05-by-country dop_v1_base_line_run_with_lr_0.001_a",
        "PWD=/x MONKEY=x KEYBOARD=us python t.py",
        f"git checkout {HEX}",
        f"wandb sync --tag exp runs/{HEX[:39]}",
        "sk-learn-models-version-2024 hf_transfer disk-abcdefghijklmnopqrstuvwxyz task-0123456789abcdefghij",
        "/data/sk-learn_experiments_2024/run.log hf_mistral7binstructv2 sk-learn-random_forest_500",
        "curl http://host:8080/x@y https://me@host/x http://[::1]:80/x@y",
        "env:KEY is not a variable; write env:KEY=VALUE with a KEY of letters",
        "the password is wrong: secret sauce",
        "--password",
        "",
    ],
)
def test_leaves_text_without_secrets_unchanged(text: str) -> None:
    assert masked(text) == text


def test_hides_secrets_in_command_arguments() -> None:
    words = ["t.py", "--api-key", "S3 x", "--secret=S3 x", "--ask-password", "--lr", "1", "HF_TOKEN=S3 x", HF]
    shown = ["t.py", "--api-key", HIDDEN, f"--secret={HIDDEN}", "--ask-password", "--lr", "1"]
    shown += [f"HF_TOKEN={HIDDEN}", HIDDEN]
    assert masked_words(words) == shown
    assert masked_words(["--auth-token", "true", "--secret=$X"]) == ["--auth-token", "true", "--secret=$X"]


def test_hides_secrets_in_json() -> None:
    texts = ["PASS=S3 of 12 tests", "error: a value is required for --password", "--password", "exit"]
    value = {
        "arguments": ["--api-key", "S3 x"], "log_end": texts, "command": ("t.py --api-key", f"x {HF}"),
        "environment": {"env": {"db_password": "S3", "LR": "0.1"}, "cwd": "/x"},
        "env": None, "gpus": [{"id": 1}],
    }  # fmt: skip
    assert json.loads(masked_json(value)) == {
        "arguments": ["--api-key", HIDDEN], "log_end": ["PASS=(hidden) of 12 tests", *texts[1:]],
        "command": ["t.py --api-key", "x (hidden)"],
        "environment": {"env": {"db_password": HIDDEN, "LR": "0.1"}, "cwd": "/x"},
        "env": None, "gpus": [{"id": 1}],
    }  # fmt: skip


SECRET = st.text(st.characters(codec="utf-8", exclude_characters="\x00"), min_size=1).map(
    lambda s: f"S3{s}S3"
)


@given(SECRET, st.sampled_from(["--api-key {}", "--db_password={}", "HF_TOKEN={}", "[env:A_KEY={}]"]))
def test_hides_any_secret_that_is_quoted_for_a_shell(secret: str, form: str) -> None:
    for value in (shlex.quote(secret), '"' + secret.replace("\\", "\\\\").replace('"', '\\"') + '"'):
        text = masked(f"t.py {form.format(value)} --lr 1")
        assert "S3" not in text
        assert masked(text) == text
    words = [word.format(secret) for word in form.strip("[]").split(" ")]
    assert "S3" not in " ".join(masked_words(["t.py", *words]))


@pytest.mark.parametrize(
    "text",
    ["--" + "a" * 10**5, "A_KEY_" * 20_000, "://a:" * 20_000, "'--secret=" * 20_000, "--api-key " * 20_000,
     'key "' * 20_000, '""a' * 40_000, "wandb login" + " --a" * 30_000, "wandb." * 20_000,
     "sk-" + "a-" * 50_000],
)  # fmt: skip
def test_the_time_to_find_secrets_grows_linearly_with_the_text(text: str) -> None:
    began = time.process_time()
    masked(text)
    assert time.process_time() - began < 1.0


def test_json_keeps_names_and_paths_as_programs_use_them() -> None:
    kept = {"name": HF, "log": f"/logs/{HF}.log"}
    job = {**kept, "reason": HF, "arguments": ["--password", "-S3"], "env": {"A": 1}}
    assert masked_values(job) == {
        **kept, "reason": HIDDEN, "arguments": ["--password", HIDDEN], "env": {"A": "1"}
    }  # fmt: skip
