"""Everything that reads foreign text takes time in proportion to its length."""

from __future__ import annotations

import ast
import importlib
import pkgutil
import re
import signal
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

try:
    from re import _constants as constants  # type: ignore[attr-defined]
    from re import _parser as parser  # type: ignore[attr-defined]
except ImportError:  # Python 3.10
    import sre_constants as constants
    import sre_parse as parser

import pytest

import gpu_scheduler

PACKAGE = Path(gpu_scheduler.__file__).parent
SIZES = (2_000, 4_000, 8_000)
#: Seconds of CPU time for 1 kB. A shorter search is harmless even if its time is quadratic: 8 kB then take
#: less than 20 ms. A short text that takes longer than HOPELESS_S shows a time worse than quadratic.
HARMLESS_S, HOPELESS_S = 0.0003, 0.03
#: The growth of the time from 2 kB to 8 kB: 4 if it is linear, 16 if it is quadratic.
MAX_GROWTH = 9.0
CALL = re.compile(r"\b(\w+)\.(search|match|fullmatch|subn?|split|findall|finditer)\b")
#: Texts that are repeated for every pattern, and those that are also repeated after each beginning.
UNITS = ("\n", "_", "-", ".", "/", ",", "=", '"', "'", "(", "[", "x1", "\\", "\x1b[", "--a ", "a=")
AFTER_LEADS = (" ", "a", "0", "1,", "a ", "a-", "a.")
#: Calls whose patterns are found in the tables that they fill, or that only read the program's own text.
ELSEWHERE = (
    "re.compile(pattern)",
    "re.compile(pattern, re.IGNORECASE)",
    "re.sub(bound, f'\\\\1 {PROGRAM} {_CLONE_PROGRAM}', text, flags=re.MULTILINE)",
)
#: Tables whose patterns are not searched for.
MATCHED = {"core.jobsfile.job_line._BACKGROUND": "match"}
ENDS = ("", "!\n")


class Use(NamedTuple):
    """A pattern with the methods that the package calls on it."""

    pattern: re.Pattern[Any]
    methods: frozenset[str]
    where: str


def modules() -> Iterator[ModuleType]:
    for info in pkgutil.walk_packages([str(PACKAGE)], "gpu_scheduler."):
        if not info.name.endswith(("__main__", "runner.start")):  # these run when they are imported
            before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
            module = importlib.import_module(info.name)
            signal.pthread_sigmask(signal.SIG_SETMASK, before)  # modules of the runner block signals
            yield module


def compiled(value: Any, depth: int = 0) -> Iterator[re.Pattern[Any]]:
    """Yields the patterns in a value of a module: in containers, records and the attributes of classes."""
    if isinstance(value, re.Pattern):
        yield value
    elif depth < 6 and isinstance(value, dict):
        for one in value.values():
            yield from compiled(one, depth + 1)
    elif depth < 6 and isinstance(value, (tuple, list, set, frozenset)):
        for one in value:
            yield from compiled(one, depth + 1)
    elif depth < 6 and type(value).__module__.startswith("gpu_scheduler"):
        yield from compiled({name: getattr(value, name, None) for name in _fields(value)}, depth + 1)
    elif depth == 0 and isinstance(value, type) and value.__module__.startswith("gpu_scheduler"):
        yield from compiled(dict(vars(value)), depth + 1)
    elif isinstance(getattr(value, "__self__", None), re.Pattern):
        yield value.__self__


def _fields(value: Any) -> Iterable[str]:
    names = (*getattr(type(value), "__slots__", ()), *getattr(type(value), "__struct_fields__", ()))
    return (*getattr(value, "__dict__", ()), *names)


def uses() -> list[Use]:
    """Returns every pattern of the package. Fails for one that only a call of a function makes known."""
    methods: dict[tuple[Any, int], set[str]] = defaultdict(set)
    places: dict[tuple[Any, int], str] = {}
    named: dict[str, set[str]] = defaultdict(set)
    found: dict[tuple[Any, int], list[tuple[str, str]]] = defaultdict(list)
    unknown: list[str] = []

    def add(pattern: re.Pattern[Any], name: str, place: str) -> None:
        key = (pattern.pattern, pattern.flags)
        places.setdefault(key, place)
        found[key].append((name, place))

    for module in modules():
        place = module.__name__.removeprefix("gpu_scheduler.")
        for name, value in vars(module).items():
            for pattern in compiled(value):
                owner = f"{place}.{name}" if name.startswith("_") else name
                add(pattern, owner if isinstance(value, re.Pattern) else "", f"{place}.{name}")
        assert module.__file__ is not None
        text = Path(module.__file__).read_text()
        for owner, method in CALL.findall(text):
            named[f"{place}.{owner}" if owner.startswith("_") else owner].add(method)
        for node in ast.walk(ast.parse(text)) if "import re\n" in text else ():
            if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args):
                continue
            if not (isinstance(node.func.value, ast.Name) and node.func.value.id == "re"):
                continue
            line = f"{place}:{node.lineno}"
            try:
                code = compile(ast.Expression(node.args[0]), "pattern", "eval")
                given = eval(code, dict(vars(module)))
            except NameError:
                unknown.append(ast.unparse(node))
                continue
            flags = [eval(compile(ast.Expression(one.value), "flags", "eval"), dict(vars(module)))
                     for one in node.keywords if one.arg == "flags"]  # fmt: skip
            if node.func.attr == "compile":
                flags += [eval(compile(ast.Expression(one), "flags", "eval"), dict(vars(module)))
                          for one in node.args[1:]]  # fmt: skip
            pattern = re.compile(given, *flags) if isinstance(given, (str, bytes)) else given
            key = (pattern.pattern, pattern.flags)
            places.setdefault(key, line)
            if node.func.attr != "compile":
                methods[key].add(node.func.attr)
            else:
                found.setdefault(key, [])
    result = []
    for key in places:
        used = set(methods[key])
        for name, place in found[key]:
            used |= named.get(name, set()) if name else {MATCHED.get(place, "search")}
        result.append(Use(re.compile(*key), frozenset(used or {"search"}), places[key]))
    assert sorted(unknown) == sorted(ELSEWHERE)
    return result


def samples(tree: Iterable[Any]) -> Iterator[tuple[str, list[str]]]:
    """Yields, for each repetition in a pattern, a text that leads to it and texts that it repeats."""
    before = ""
    for op, value in tree:
        if op in (constants.MAX_REPEAT, constants.MIN_REPEAT):
            _, most, body = value
            if most > 50:
                yield before, [text for text in (shortest(body), longest(body)) if text]
            for lead, units in samples(body):
                yield before + lead, units
        elif op is constants.SUBPATTERN:
            for lead, units in samples(value[-1]):
                yield before + lead, units
        elif op is constants.BRANCH:
            for one in value[1]:
                for lead, units in samples(one):
                    yield before + lead, units
        elif op in (constants.ASSERT, constants.ASSERT_NOT):
            for lead, units in samples(value[1]):
                yield before + lead, units
        before += shortest([(op, value)])


def shortest(tree: Iterable[Any], *, repeat: int = 0) -> str:
    """Returns a text that a part of a pattern matches, with as few repetitions as possible."""
    text = ""
    for op, value in tree:
        if op is constants.LITERAL:
            text += chr(value)
        elif op is constants.NOT_LITERAL:
            text += "b" if value == ord("a") else "a"
        elif op is constants.ANY:
            text += "a"
        elif op is constants.IN:
            text += one_of(value)
        elif op in (constants.MAX_REPEAT, constants.MIN_REPEAT):
            text += shortest(value[2], repeat=repeat) * max(value[0], min(repeat, value[1]))
        elif op is constants.SUBPATTERN:
            text += shortest(value[-1], repeat=repeat)
        elif op is constants.BRANCH:
            text += shortest(value[1][0], repeat=repeat)
    return text


def longest(tree: Iterable[Any]) -> str:
    return shortest(tree, repeat=1)


def one_of(items: Iterable[Any]) -> str:
    items = list(items)
    is_negated = items[0][0] is constants.NEGATE
    allowed = re.compile("[" + "".join(map(_class, items[is_negated:])) + "]") if items else None
    for character in "a0 -_=.:/,\"'[]()%\n\t\r\x1b\x07;|&<>#+*A\\@!~^${}`?\x80━\x9c":
        if (allowed is not None and allowed.match(character) is not None) != is_negated:
            return character
    return "a"


def _class(item: Any) -> str:
    op, value = item
    if op is constants.LITERAL:
        return re.escape(chr(value))
    if op is constants.RANGE:
        return f"{re.escape(chr(value[0]))}-{re.escape(chr(value[1]))}"
    # fmt: off
    return {"CATEGORY_DIGIT": r"\d", "CATEGORY_NOT_DIGIT": r"\D", "CATEGORY_SPACE": r"\s",
            "CATEGORY_NOT_SPACE": r"\S", "CATEGORY_WORD": r"\w", "CATEGORY_NOT_WORD": r"\W"}[str(value)]


def words(tree: Iterable[Any]) -> Iterator[str]:
    """Yields the literal words of a pattern."""
    word = ""
    for op, value in tree:
        if op is constants.LITERAL:
            word += chr(value)
            continue
        if word:
            yield word
        word = ""
        if op in (constants.MAX_REPEAT, constants.MIN_REPEAT):
            yield from words(value[2])
        elif op is constants.SUBPATTERN:
            yield from words(value[-1])
        elif op is constants.BRANCH:
            for one in value[1]:
                yield from words(one)
        elif op in (constants.ASSERT, constants.ASSERT_NOT):
            yield from words(value[1])
    if word:
        yield word


def hostile(source: str, flags: int) -> Iterator[Callable[[int], str]]:
    """Yields functions that make a hostile text of a length, derived from the parts of a pattern."""
    tree = parser.parse(source, flags & ~re.UNICODE if isinstance(source, bytes) else flags)
    pairs: dict[tuple[str, str], None] = {}
    leads = {"": None}
    repeated: dict[str, None] = {}
    for lead, units in samples(tree):
        leads[lead] = None
        for unit in units:
            pairs[lead, unit] = None
            repeated[unit] = None
            pairs["", lead + unit] = None
            pairs["", lead + unit * 3] = None
            pairs["", lead + " "] = None
    for lead in leads:
        for unit in AFTER_LEADS:
            pairs[lead, unit] = None
    for word in words(tree):
        pairs["", word], pairs["", word + " "], pairs[word, " "] = None, None, None
        pairs[word, "a"], pairs[word, "0"], pairs["", word + "="] = None, None, None
    for unit in UNITS:
        pairs["", unit] = None
    for lead, unit in pairs:
        if unit:
            for end in ENDS:
                yield partial(text_of, lead, unit, end)


def text_of(lead: str, unit: str, end: str, size: int) -> str:
    return lead + unit * (size // len(unit)) + end


def seconds(run: Callable[[], object]) -> float:
    began = time.process_time()
    run()
    return time.process_time() - began


def growth(read: Callable[[Any], object], make: Callable[[int], Any]) -> float:
    """Returns by which factor the time grows from 2 kB to 8 kB; 1 if it is too short to matter."""
    before = taken = 0.0
    for size in (22, 40, 60, 80, 200, 450, 1_000):
        text = make(size)
        before, taken = taken, seconds(partial(read, text))
        if taken > HOPELESS_S and min(seconds(partial(read, text)) for _ in range(2)) > HOPELESS_S:
            return float("inf")
    if taken < HARMLESS_S or taken < 3 * before:
        return 1.0
    texts = [make(size) for size in SIZES]
    best = [min(seconds(partial(read, text)) for _ in range(2)) for text in texts]
    return best[-1] / max(best[0], 1e-6)


def call(pattern: re.Pattern[Any], method: str, text: Any) -> object:
    empty = text[:0]
    if method in ("sub", "subn"):
        return getattr(pattern, method)(empty, text)
    found = getattr(pattern, method)(text)
    return list(found) if method == "finditer" else found


def worst_of(use: Use) -> tuple[float, str]:
    """Returns the worst growth of a pattern and its text; stops at the first one that is not linear."""
    worst = (1.0, "")
    source = use.pattern.pattern
    for make in hostile(source, use.pattern.flags):

        def text(size: int, make: Callable[[int], str] = make) -> Any:
            made = make(size)
            return made.encode("latin-1", "replace") if isinstance(source, bytes) else made

        for method in use.methods:
            found = growth(partial(call, use.pattern, method), text)
            if found > worst[0]:
                worst = found, f"{use.where}.{method}: {found:.1f} times as long for {make(30)!r}"
            if found > MAX_GROWTH:
                return worst
    return worst


def test_every_pattern_of_the_package_is_linear() -> None:
    found = [worst_of(use) for use in uses()]
    worst = max(one for one in found if one[0] <= MAX_GROWTH)
    print(f"{len(found)} patterns; the worst of the linear ones: {worst[1] or 'none takes measurable time'}")
    assert [text for growth, text in found if growth > MAX_GROWTH] == []
    assert len(found) > 200


@pytest.mark.parametrize(
    ("pattern", "method"),
    [
        (r"\s*x?\s*\d+\s*", "search"),
        (r"(a+)+$", "match"),
        (r"\s+$", "sub"),
        (rb"\x1b\[\d*\d*m", "search"),
        (r"(?:a|b|ab)*c", "fullmatch"),
    ],
)
def test_patterns_that_are_not_linear_are_found(pattern: Any, method: str) -> None:
    assert worst_of(Use(re.compile(pattern), frozenset([method]), "planted"))[0] > MAX_GROWTH
