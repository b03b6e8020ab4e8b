"""Parsing of single lines, with every bracketed example of the design and with lines from real files."""

from __future__ import annotations

import posixpath
import re
import shlex

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gpu_scheduler.core.jobsfile.compose import format_script_line
from gpu_scheduler.core.jobsfile.job_line import Malformed, ParsedJob, parse_line
from gpu_scheduler.core.model.job_spec import JobSpec

EIGHT_GPUS = frozenset(range(8))


def parsed(text: str) -> ParsedJob:
    result = parse_line(text, "/w", "/home/u", EIGHT_GPUS)
    assert isinstance(result, ParsedJob), result
    return result


def spec(text: str) -> JobSpec:
    return parsed(text).spec


def refused(text: str) -> Malformed:
    result = parse_line(text, "/w", "/home/u", EIGHT_GPUS)
    assert isinstance(result, Malformed), result
    return result


@pytest.mark.parametrize(
    "text",
    ["", "  \t", "# comment", "  # comment", "\ufeff", "\ufeff# x", "\r\n", "priority,script_path,conda_env",
     "priority", "Priority , script_path", '"priority","script_path"'],
)  # fmt: skip
def test_skips_blank_lines_comments_and_the_csv_header(text: str) -> None:
    assert parse_line(text, "/w", "/home/u") is None


def test_parses_every_field_of_a_csv_line() -> None:
    job = spec("1,/p/train.py,pytorch_env,--llm qwen2.5-7b-inst --epochs 100,0-3")
    assert job == JobSpec(
        kind="csv",
        text="1,/p/train.py,pytorch_env,--llm qwen2.5-7b-inst --epochs 100,0-3",
        cwd="/w",
        script="/p/train.py",
        arguments=("--llm", "qwen2.5-7b-inst", "--epochs", "100"),
        conda="pytorch_env",
        priority=1,
        allowed=(0, 1, 2, 3),
    )
    assert job.llm == "qwen2.5-7b-inst"


def test_finds_the_model_if_the_llm_option_has_an_equals_sign() -> None:
    assert spec("0,a.py,,--llm=qwen2.5-3b-inst").llm == "qwen2.5-3b-inst"


@pytest.mark.parametrize(
    ("text", "script", "conda", "arguments", "allowed"),
    [
        ("0,a.py", "/w/a.py", None, (), None),
        (",a.py", "/w/a.py", None, (), None),
        ("HIGH,a.py,env", "/w/a.py", "env", (), None),
        ("LOW ,a.sh", "/w/a.sh", None, (), None),
        ("0,a.py,", "/w/a.py", None, (), None),
        (" 0 , ./b/../a.py , env , --x 1 , 2 ", "/w/a.py", "env", ("--x", "1"), (2,)),
        ("0,~/a.py,/opt/envs/x", "/home/u/a.py", "/opt/envs/x", (), None),
        ("0,/a.py,,,0,2,4", "/a.py", None, (), (0, 2, 4)),
        ("0,/a.py,,--x y,all", "/a.py", None, ("--x", "y"), None),
        ("0,/a.py,,--batch_size 1,4,5,6,7", "/a.py", None, ("--batch_size", "1"), (4, 5, 6, 7)),
        ('0,/a.py,,"--layers 1,2,3"', "/a.py", None, ("--layers", "1,2,3"), None),
        ('0,/a.py,,"--layers ""1,2,3""",0-3', "/a.py", None, ("--layers", "1,2,3"), (0, 1, 2, 3)),
        ('0,/a.py,,"--layers 1","2,3"', "/a.py", None, ("--layers", "1"), (2, 3)),
        ('0,"/d/a,b #1.py",,--t "a b"', "/d/a,b #1.py", None, ("--t", "a b"), None),
        ("0,/d/it's.py,e,--x 1 # it's, a comment, of note", "/d/it's.py", "e", ("--x", "1"), None),
        ("0,/a.py,,--t 'a # b' # c", "/a.py", None, ("--t", "a # b"), None),
        ("0,/a.py,,--tag a#1,0 # c,d", "/a.py", None, ("--tag", "a#1"), (0,)),
        ("0,/a.py,,$H `id` ; touch /tmp/x", "/a.py", None, ("$H", "`id`", ";", "touch", "/tmp/x"), None),
        ('"0","/a.py","env","--x","1"', "/a.py", "env", ("--x",), (1,)),
        ("\ufeff0,/a.py,env\r\n", "/a.py", "env", (), None),
        ("0,/a.py # c", "/a.py", None, (), None),
        ('0,/a.py,,"python"', "/a.py", None, ("python",), None),
    ],
)  # fmt: skip
def test_parses_csv_lines(
    text: str, script: str, conda: str | None, arguments: tuple[str, ...], allowed: tuple[int, ...] | None
) -> None:
    job = spec(text)
    assert (job.kind, job.script, job.conda, job.arguments) == ("csv", script, conda, arguments)
    assert job.allowed == allowed


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("HIGH;a.py", "its fields are separated by semicolons; separate them by commas"),
        ("1|a.py", "separated by bars; separate them by commas"),
        ("1\ta.py", "separated by tabs"),
        ("MEDIUM,a.py", "CRITICAL, HIGH, NORMAL or LOW"),
        ("HIGH,,env,x", "there is no script"),
        ('2,3 --text ""quoted""",', "there is a double quote inside the field"),
        ('0,a.py,e"nv,--x 1', "there is a double quote inside the field"),
        ("0;a.py", "its fields are separated by semicolons; separate them by commas"),
        ("1.5,a.py", "priority '1.5'"),
        ("١٢,a.py", "priority '١٢'"),
        ("1_000,a.py,env", "priority '1_000'"),
        ("\u00a00,a.py,env", "priority '\\xa00'"),
        ("python,a.py", "priority 'python'"),
        ("42", "there is no script"),
        ("0,,env,x", "there is no script"),
        ("0 a.py", "priority '0 a.py'"),
        ("0,a.py,my env", "conda environment 'my env'"),
        ("0,a.py,,--x 'a", "is not closed"),
        ('0,a.py,,"--x 1" y', "text follows the closing quote"),
        ('0,a.py,,"--x 1', "is not closed"),
        ('0,a.py,,x,"0,1" y', "text follows"),
        ("0,a.py,,x,3-0", "runs backward"),
        ("0,a.py,,x,0,,1", "an item is empty"),
        ("0,a.py,,x,9", "there is no GPU 9"),
        ("0,a.py,,torchrun-0gpu,--x 1", "execution type 'torchrun-0gpu': the number of GPUs"),
        ("0,a.py,,torchrun-65gpu", "from 1 to 64"),
        ("0,a.py,,torchrun-00002gpu", "from 1 to 64"),
        ("0,a.py,,torchrun-2gpus,--x 1,0", "if the field contains arguments, put quotes around it"),
        ("0,a.py,,torchrun-gpu", "not python, torchrun or torchrun-Ngpu"),
        ("0,a.py,,torchrun-\u0662gpu", "not python, torchrun or torchrun-Ngpu"),
        ("0,a.py,,TorchRun", "not python, torchrun or torchrun-Ngpu"),
        ("0,a.py,,Python,--x", "not python, torchrun or torchrun-Ngpu"),
        ("0,a.py,,torchrun,--x 'a", "is not closed"),
        ('0,a.py,,python,"--x 1" y', "text follows the closing quote"),
        ("0,a.py,,torchrun-2gpu,--x,9", "there is no GPU 9"),
        ("[gpus=2] 0,a.py,,torchrun-2gpu,--x", "the execution type sets the number of GPUs; leave out gpus"),
        ("[share=0.5] 0,a.py,,torchrun", "leave out share"),
        ("[allowed=1] 0,a.py,,torchrun,,1", "both in the attributes"),
    ],
)
def test_a_malformed_csv_line_is_never_parsed_as_a_command(text: str, message: str) -> None:
    result = refused(text)
    assert message in result.reason
    if not text.startswith("[") or "both" not in message:
        assert "priority,script_path" in result.accepted_form
        assert "torchrun-Ngpu before the arguments" in result.accepted_form


@pytest.mark.parametrize(
    ("text", "message", "suggestions"),
    [
        ("0,a.py,,--betas 0.9,0.99 --lr 1,", "not a number", ['0,a.py,,"--betas 0.9,0.99 --lr 1",']),
        ("0,a.py,,--betas 0.9,0.99,0,1", "not a number", ['0,a.py,,"--betas 0.9,0.99",0,1']),
        ("0,a.py,e,--x a, b", "not a number", ['0,a.py,e,"--x a, b",']),
        ("0,a.py,e,torchrun-2gpu,--x a,b", "not a number", ['0,a.py,e,torchrun-2gpu,"--x a,b",']),
        ('0,a.py,,--x "1,2",0', "is not closed", ['0,a.py,,"--x ""1,2""",0']),
        ("[vram=8G] 0,a.py,,--x 'a,b' # why", "is not closed", ["""[vram=8G] 0,a.py,,"--x 'a,b'","""]),
        ('0,"a,b.py",,--x c,d', "not a number", ['0,"a,b.py",,"--x c,d",']),
        ("0,a.py,,--layers 1,2,3", "not clear", ['0,a.py,,"--layers 1,2,3",', '0,a.py,,"--layers 1","2,3"']),
        ("0,a.py,,--layers 9,3,1", "not clear", ['0,a.py,,"--layers 9,3,1",', '0,a.py,,"--layers 9","3,1"']),
        ("0,a.py,e,torchrun-2gpu,--layers 1,2,3", "not clear",
         ['0,a.py,e,torchrun-2gpu,"--layers 1,2,3",', '0,a.py,e,torchrun-2gpu,"--layers 1","2,3"']),
    ],
)  # fmt: skip
def test_rejects_unquoted_commas_in_a_field_and_suggests_the_quoted_line(
    text: str, message: str, suggestions: list[str]
) -> None:
    result = refused(text)
    assert message in result.reason
    assert result.accepted_form == ", or ".join(suggestions)
    for line in suggestions:
        assert isinstance(parse_line(line, "/", "/"), ParsedJob)


def test_shows_the_accepted_forms_if_quoting_cannot_fix_a_line_with_too_many_commas() -> None:
    for text in ("0,a.py,,--x 'a,b", "0,a.py,,x,9", "0,a.py,,--betas 0.9,0.99,9"):
        assert "priority,script_path" in refused(text).accepted_form


@pytest.mark.parametrize(
    ("text", "torchrun", "conda", "arguments", "allowed"),
    [
        ("0,a.py,,python,--x 1,0-3", None, None, ("--x", "1"), (0, 1, 2, 3)),
        ("0,a.py,,python", None, None, (), None),
        ("0,a.py,e,torchrun", 1, "e", (), None),
        ("0,a.py,e,torchrun-2gpu,--x y", 2, "e", ("--x", "y"), None),
        ("0,a.py,e, torchrun-2gpu , --x y , 4,5", 2, "e", ("--x", "y"), (4, 5)),
        ("0,a.py,,torchrun-08gpu,,", 8, None, (), None),
        ("0,a.py,,torchrun-64gpu,,all", 64, None, (), None),
        ('0,a.py,,torchrun-2gpu,"--layers 1,2,3",0-3', 2, None, ("--layers", "1,2,3"), (0, 1, 2, 3)),
        ('0,a.py,,torchrun-2gpu,"--layers 1","2,3"', 2, None, ("--layers", "1"), (2, 3)),
        ("0,a.py,,torchrun-2gpu,--t 'a # b' # c", 2, None, ("--t", "a # b"), None),
        ("0,a.py,,torchrun # two, three", 1, None, (), None),
        ('0,a.py,,"torchrun-2gpu",0', None, None, ("torchrun-2gpu",), (0,)),
        ("0,a.py,,torchrun-2gpu x,0", None, None, ("torchrun-2gpu", "x"), (0,)),
        ("0,a.py,,torchrun,python", 1, None, ("python",), None),
    ],
)
def test_parses_csv_lines_with_six_columns(
    text: str, torchrun: int | None, conda: str | None, arguments: tuple[str, ...], allowed: tuple[int, ...]
) -> None:
    job = spec(text)
    assert (job.kind, job.script, job.torchrun, job.conda) == ("csv", "/w/a.py", torchrun, conda)
    assert (job.arguments, job.allowed) == (arguments, allowed)
    assert JobSpec.from_json(job.to_json()) == job


def test_attributes_may_precede_a_csv_line_with_six_columns() -> None:
    job = spec("[name=big priority=3 env:A=1 cuda=add] ,a.py,,torchrun-2gpu,--x")
    assert (job.name, job.priority, job.env, job.cuda, job.torchrun) == ("big", 3, (("A", "1"),), "add", 2)


def test_adds_a_note_about_arguments_that_end_in_a_number() -> None:
    assert parsed("0,a.py,,--epochs 100,0-3").notes == ("read as arguments: --epochs 100 | GPUs: 0-3",)
    assert parsed("0,a.py,,--epochs 100").notes == ()
    assert parsed('0,a.py,,"--epochs 100",0-3').notes == ()
    assert parsed("0,a.py,,torchrun,--epochs 9,0").notes == ("read as arguments: --epochs 9 | GPUs: 0",)


def test_adds_a_note_about_six_columns_whose_arguments_look_like_a_gpu_list() -> None:
    assert parsed("0,a.py,,python,0-3").notes == ("read as python, arguments: 0-3 | GPUs: any",)
    assert parsed("0,a.py,,torchrun-2gpu,--x 1").notes == ()


@pytest.mark.parametrize(
    "text",
    ["CUDA_VISIBLE_DEVICES=0,1 python t.py", "python t.py --x 1,2,3", "echo a,b,c", "./run.sh", "7z x a",
     "train.py # a, b, c", "echo 'a # b'", '"my prog" a,b,c'],
)  # fmt: skip
def test_parses_commands(text: str) -> None:
    job = spec(text)
    assert job.kind == "command"
    assert job.command == job.text == text.split(" # a,")[0]


def test_suggests_a_remedy_for_a_command_that_sets_cuda_visible_devices() -> None:
    assert "[allowed=0]" in parsed("CUDA_VISIBLE_DEVICES=0,1 python t.py").notes[0]
    assert "[allowed=0]" in parsed("export CUDA_VISIBLE_DEVICES=1; python t.py").notes[0]
    assert parsed("python t.py $CUDA_VISIBLE_DEVICES").notes == ()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("nohup python train.py &", "ends in `&`"),
        ("train.py & # later", "ends in `&`"),
        ("python t.py \\", "backslash"),
        ("a\0b", "NUL byte at column 2"),
        ("t.py --prompt \u201chello world\u201d", "\u201c is not a quote of the shell; write straight"),
        ("t.py --prompt=\u201chello world\u201d", "\u201c is not a quote of the shell"),
        ("t.py --prompt hello\u201d", "\u201d is not a quote of the shell"),
        ("t.py --prompt \u2018hello world\u2019", "\u2018 is not a quote of the shell"),
        ("[name=\u201ca\u201d] t.py", "\u201c is not a quote of the shell"),
        ("0,t.py,,--prompt \u201cx y\u201d,", "\u201c is not a quote of the shell"),
        ("t.py \u2013lr 3", "the dash of \u2013lr is not a hyphen; write --lr (or -lr)"),
        ("t.py \u2014lr=3", "the dash of \u2014lr is not a hyphen"),
        ("t.py \u2013-lr 3", "the dash of \u2013-lr is not a hyphen"),
        ("python C:\\Users\\t.py", "C:\\… is a path of Windows; write the path on this machine"),
        ("t.py --data=D:\\data", "D:\\… is a path of Windows"),
        ("0,C:\\a\\t.py,,,", "C:\\… is a path of Windows"),
        ("priority;script_path;conda_env", "its fields are separated by semicolons"),
        ("high;t.py", "its fields are separated by semicolons"),
        ("a\rb", "carriage return at column 2"),
        ("x" * 70_000, "longer than 64 KiB"),
        ("[ -f x ] && train.py", "`[] [ -f x ] && train.py`"),
        ("[[ -f x ]] && train.py", "`[] [[ -f x ]] && train.py`"),
        ("[hold", "not closed"),
        ("[hold]", "nothing follows"),
        ("[hold] # x", "nothing follows"),
        ("[hold]python x", "a blank must follow"),
        ("[hold] [cancel] x", "a second block"),
        ("[hold hold] x", "given twice"),
        ("[env:A=1 env:A=2] x", "given twice"),
        ("[hold=1] x", "takes no value"),
        ("[quux=3] x", "'quux' is unknown; known attributes: vram gpus"),
        ("[nice=3] x", "'nice' is unknown; write priority=N"),
        ("[gpus=65] x", "gpus=65"),
        ("[gpus=0 vram=1G] x", "gpus=0 asks for no GPU and contradicts vram; leave out one or the other"),
        ("[gpus=0 share=0.5 allowed=0] x", "contradicts share and allowed"),
        ("[gpus=0 share=2] x", "contradicts share"),
        ("[gpus=0 exclusive preempt] x", "contradicts exclusive and preempt"),
        ("[gpus=0 cuda=rewrite] x", "contradicts cuda"),
        ("[gpus=0] 0,a.py,,--x 1,0", "contradicts allowed"),
        ("[gpus=0] 0,a.py,,torchrun-2gpu,--x", "leave out gpus"),
        ("[gpus=\u0661] x", "gpus=\u0661"),
        ("[gpus=] x", "no value"),
        ("[share=x] x", "share 'x'"),
        ("[share=1e0] x", "share '1e0'"),
        ("[share=1.5 gpus=2] x", "leave out gpus"),
        ("[allowed=9] x", "no GPU 9"),
        ("[name=a//b] x", "name 'a//b'"),
        ("[priority=HIGH] LOW,a.py", "both in the attributes and in its CSV field"),
        ("[conda=a venv=b] x", "give only one"),
        ("[cuda=yes] x", "add, rewrite, off"),
        ("[cuda-ids=x] x", "physical, visible"),
        ("[env:1A=x] x", "is not a variable"),
        ("[env:CUDA_VISIBLE_DEVICES=1] x", "[allowed=0]"),
        ("[priority=1] 0,a.py", "both in the attributes and in its CSV field"),
        ("[conda=a] 0,a.py,b", "both in the attributes"),
        ("[allowed=1] 0,a.py,,x,1", "both in the attributes"),
    ],
)  # fmt: skip
def test_rejects_malformed_lines(text: str, message: str) -> None:
    assert message in refused(text).reason


@pytest.mark.parametrize(
    "text",
    [
        't.py --prompt "don\u2019t \u201csay\u201d \u2013lr"',
        "t.py --prompt '\u201cx y\u201d C:\\x'",
        't.py --data "C:\\data"',
        "echo don\u2019t stop",
        "echo \u2019tis",
        "echo a \u2013 b",
        "t.py --range 3\u20135",
        "echo a\\ C: # \u201cquoted\u201d",
        "sed -e s:\\n:x: y",
        "t.py; echo priority",
        "low\tt.py",
        "low | t.py",
    ],
)
def test_keeps_typographic_characters_within_text_and_quotes(text: str) -> None:
    assert spec(text).command == text.partition(" #")[0]


def test_parses_all_attributes() -> None:
    job = spec(
        "[gpus=2 share=0.5 allowed=0-3 name=bert priority=-1 venv=v cwd=sub env:SEED=1 env:A='x ] y' cuda=off"
        " cuda-ids=visible hold cancel] python t.py # note"
    )
    assert job == JobSpec(
        kind="command", text="python t.py", command="python t.py", cwd="/w/sub", venv="/w/sub/v",
        env=(("A", "x ] y"), ("SEED", "1")), name="bert", priority=-1, allowed=(0, 1, 2, 3), share=500,
        gpus=2, cuda="off", cuda_ids="visible", hold=True, cancel=True,
    )  # fmt: skip


def test_text_after_an_empty_attribute_block_is_taken_literally() -> None:
    assert spec("[] [ -f x ] && train.py").command == "[ -f x ] && train.py"
    assert spec("[] 0,a.py").kind == "csv"


def test_an_empty_csv_field_does_not_override_the_attribute() -> None:
    job = spec("[priority=3 conda=e allowed=1] ,a.py,,x,")
    assert (job.priority, job.conda, job.allowed) == (3, "e", (1,))


def test_relative_paths_are_resolved_against_the_cwd_attribute() -> None:
    job = spec("[cwd=~/d venv=../v] 0,s/a.py")
    assert (job.cwd, job.script, job.venv) == ("/home/u/d", "/home/u/d/s/a.py", "/home/u/v")


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("0,a.py,,--lr 1 --bs 2", "0,a.py,,--lr 2 --bs 1", False),
        ("[env:SEED=1] 0,a.py", "[env:SEED=2] 0,a.py", False),
        ("[env:SEED=1] python a.py", "[env:SEED=2] python a.py", False),
        ("0,a.py,e,--x", "0,a.py,f,--x", False),
        ("0,a.py,e,--x", "[cwd=d] 0,/w/a.py,e,--x", False),
        ("0,a.py,e,--x", "[conda=e name=n gpus=1] 5,./a.py,,  '--x',0-3 # c", True),
        ("[priority=1 hold] python a.py", "python a.py # c", True),
        ("python a.py", "python  a.py", False),
        ("0,a.py,e,--x", "0,a.py,e,python,--x", True),
        ("0,a.py,e,--x", "0,a.py,e,torchrun,--x", False),
        ("0,a.py,e,torchrun,--x", "0,a.py,e,torchrun-1gpu,--x", True),
        ("0,a.py,e,torchrun,--x", "0,a.py,e,torchrun-2gpu,--x", False),
    ],
)
def test_the_identity_of_a_job_depends_on_what_it_runs(one: str, other: str, same: bool) -> None:
    assert (spec(one).identity == spec(other).identity) is same


@pytest.mark.parametrize(
    ("text", "asks"),
    [("python a.py --x 'a;b' \"c d\" --y=1", False), ("a && b", True), ("a > b", True), ("for x in 1", True),
     ("echo it's", True), ("done", True), ("echo $X", True)],
)  # fmt: skip
def test_only_commands_with_shell_syntax_are_checked_by_bash(text: str, asks: bool) -> None:
    assert parsed(text).needs_bash_check is asks


ANY = st.text(alphabet="ab1 ,'\"\\#$;[]\t/.-=é", max_size=12)


@settings(deadline=None, max_examples=300)
@given(
    path=ANY,
    conda=st.sampled_from([None, "env", "/opt/e", "a-b.c_1"]),
    args=ANY,
    priority=st.none() | st.integers(-5, 999),
    allowed=st.none() | st.frozensets(st.integers(0, 7), min_size=1).map(lambda gpus: tuple(sorted(gpus))),
)
def test_parsing_a_formatted_csv_line_returns_the_same_job(
    path: str, conda: str | None, args: str, priority: int | None, allowed: tuple[int, ...] | None
) -> None:
    script = posixpath.normpath("/s/" + path)
    try:
        words = tuple(shlex.split(args))
    except ValueError:
        with pytest.raises(ValueError, match=r"closed|backslash|cannot be written"):
            format_script_line(script, conda, args, priority, allowed)
        return
    if re.search(r'\\".*[ \t]#', script):
        return  # The next test checks that these names are rejected.
    if priority is None and script == "/":
        return  # The root folder is no script.
    job = spec(format_script_line(script, conda, args, priority, allowed))
    assert (job.kind, job.script, job.conda, job.arguments) == ("csv", script, conda, words)
    assert (job.priority, job.allowed) == (priority, allowed)


def test_rejects_a_script_name_that_no_line_can_express() -> None:
    with pytest.raises(ValueError, match="the # in its name would begin a comment; rename it"):
        format_script_line('/s/\\" #', priority=None)


@pytest.mark.parametrize("word", ["python", "torchrun", "torchrun-2gpu", "Torchrun-x"])
def test_arguments_that_look_like_an_execution_type_are_quoted(word: str) -> None:
    line = format_script_line("/a.py", args=word, allowed=(0,))
    assert line == f'0,/a.py,,"{word}",0'
    assert (spec(line).arguments, spec(line).torchrun, spec(line).allowed) == ((word,), None, (0,))


def test_an_escaped_space_at_the_end_of_a_line_is_an_argument() -> None:
    assert spec(format_script_line("/a.py", args="x \\ ")).arguments == ("x", " ")


def test_csv_fields_are_quoted_only_if_necessary() -> None:
    line = format_script_line("/path/to/script.py", "myenv", "--llm q --epochs 100", 0, (0, 1, 2, 3))
    assert line == "0,/path/to/script.py,myenv,--llm q --epochs 100,0-3"
    with pytest.raises(ValueError, match="line break"):
        format_script_line("/a\nb.py")
    with pytest.raises(ValueError, match="conda environment"):
        format_script_line("/a.py", "a b")


@settings(deadline=None, max_examples=300)
@given(st.text(max_size=40) | st.text(alphabet="01,;[]'\"\\ #.py&|abc=\t", max_size=25))
@example("\x1f")
def test_any_line_parses_to_a_job_or_an_error_or_nothing(text: str) -> None:
    result = parse_line(text, "/w", "/home/u", EIGHT_GPUS)
    if isinstance(result, Malformed):
        assert result.reason
        assert result.accepted_form
    elif result is not None:
        assert "\n" not in result.spec.text
        assert result.spec.cwd.startswith("/")


@pytest.mark.parametrize(
    ("item", "name", "value"),
    [
        ("resume-flag=--ckpt_path", "resume_flag", "--ckpt_path"),
        ("resume-flag=ckpt_path", "resume_flag", "--ckpt_path"),
        ("pipefail=off", "pipefail", "off"),
        ("background=ignore", "background", "ignore"),
        ("preempt-signal=usr1", "preempt_signal", "USR1"),
        ("preempt-signal=SIGINT", "preempt_signal", "INT"),
        ("checkpoints='out/*.pt'", "checkpoints", "out/*.pt"),
        ("preempt", "preempt", True),
    ],
)
def test_parses_the_attributes_for_preemption_and_checkpoints(item: str, name: str, value: object) -> None:
    assert getattr(spec(f"[{item}] python t.py"), name) == value


@pytest.mark.parametrize(
    "item", ["resume-flag=a b", "resume-flag=--", "preempt-signal=KILL", "preempt=1", "background=1"]
)
def test_rejects_wrong_values_of_these_attributes(item: str) -> None:
    assert refused(f"['{item}'] python t.py").reason
