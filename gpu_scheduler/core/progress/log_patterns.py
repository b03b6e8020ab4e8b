"""Finds the progress that one line of a log shows: a counter, an epoch, a lone step, a percentage."""

from __future__ import annotations

import re

from gpu_scheduler.core.progress.counters import find_counter, is_build_output, parse_number
from gpu_scheduler.core.progress.marks import Counter, Epoch, Mark

#: A line without any of these says nothing. To look for them is much faster than to match the patterns.
_SIGNS = ("/", "%", "poch", "POCH", "tep", "TEP", "ter", "TER", " of ", "Train: ", "GPU available: ")
#: Epoch 2/10, epoch: [3], Epoch(train) [2], Epoch 3 of 10. "epochs 10" is a setting unless a total follows.
_EPOCH = re.compile(
    r"(?i)(?<![\w-])epoch(?P<plural>s?)\b(?: ?\(train(?:ing)?\))? ?(?:[:=#]|no\.?)? ?[\[(]? ?"
    r"(?P<number>\d{1,15}(?:\.\d{1,30})?)(?![\w.]{0,30}%|\w|\.\d)"
    r"(?: ?(?:/|of\b|out of\b) ?(?P<total>\d{1,15})\b)? ?[\])]?"
)
#: timm: Train: 3 [ 150/1251 ( 12%)]
_TIMM_EPOCH = re.compile(r"(?:^| )Train: (?P<number>\d+)(?= \[)")
#: Ultralytics YOLO:  2/100  4.72G  1.145  1.68  1.201  200  640: 100%|██████████| 8/8
_YOLO_EPOCH = re.compile(r"^ ?(?P<number>\d+)/(?P<total>\d+) [\d.]+[GM] ")
#: The lines of the Hugging Face Trainer: {'loss': 0.5, 'epoch': 1.5}
_TRAINER_EPOCH = re.compile(r"['\"]epoch['\"] ?: ?['\"]?(?P<number>\d+(?:\.\d+)?)")
#: iter 100: loss 2.3, {'step': 100, …}
_STEP_ALONE = re.compile(
    r"(?i)(?<![\w-])(?:(?:global|train(?:ing)?)[ _-]?)?(?:step|iter(?:ation)?)\b['\"]? ?[:=#]? ?"
    r"(?P<current>\d[\d,_]{0,24})(?![\w.]| ?(?:/|of\b|%|s\b|ms\b))"
)
_CHECKPOINT_NAME = re.compile(r"epoch=\d+-step=\d+")
_PERCENT = re.compile(
    r"(?i)(?:^ ?[\[(|]? ?|\b(?:progress|training|trained|completed?|done|finished|processed)\W{0,3}(?:at )?)"
    r"(?P<before>\d{1,3}(?:\.\d{1,9})?) ?% ?(?:$|[\])|,;:-]|\b(?:complete|done|finished|of\b))"
    r"|(?<![\d.])(?P<after>\d{1,3}(?:\.\d{1,9})?) ?% ?(?:complete|done|finished)"
)
_BEGINS = re.compile(r"(?i)\b(?:start|begin)")
_ENDS = re.compile(r"(?i)\b(?:done|complete|finish|end(?:ed)?\b|end of)")
_LEARNING_RATE = re.compile(r"(?i)\b(?:lr|learning[ _]rate)\W{0,8}[\d.]+(?:e-?\d+)?")
#: Texts that PyTorch Lightning writes, which counts epochs from 0.
_LIGHTNING = re.compile(r"\bv_num[=:]|\d • \d|^GPU available: |\bDataLoader \d+:")


def parse_line(text: str, line: int, *, is_nested: bool = False) -> Mark | None:
    """Returns what a line shows; None if it shows no progress.

    text: the line without escape sequences; line: its number; is_nested: whether it is a bar that another bar
    encloses.
    """
    if not _has(text, *_SIGNS):
        return None
    text = " ".join(text.split())  # every run of blanks becomes one, for all patterns
    if "-step=" in text:
        text = " ".join(word for word in text.split(" ") if not _CHECKPOINT_NAME.search(word))
    exact = _TRAINER_EPOCH.search(text) if "epoch" in text else None
    named = None if exact is not None else _named_epoch(text)
    counter = find_counter(text) if named is None else find_counter(text, *named.span())
    if exact is not None:
        epoch: Epoch | None = Epoch(float(exact["number"]), is_exact=True)
    else:
        epoch = None if named is None else _epoch(text, named, counter)
    is_from_zero = named is not None and (named.re is _TIMM_EPOCH or float(named["number"]) == 0)
    mark = Mark(line, epoch=epoch, is_from_zero=is_from_zero or _is_lightning(text))
    if counter is not None:
        return mark._replace(counter=counter._replace(is_nested=is_nested))
    is_step = not is_nested and _has(text, "tep", "TEP", "ter", "TER")
    step = _STEP_ALONE.search(text) if is_step else None
    if step is not None:
        return mark._replace(step=parse_number(step["current"]))
    if epoch is None and "%" in text:
        mark = mark._replace(percent=_percent(text))
    return None if mark == Mark(line) else mark


def _has(text: str, *needles: str) -> bool:
    return any(map(text.__contains__, needles))


def _is_lightning(text: str) -> bool:
    return _has(text, "v_num", "•", "GPU available", "DataLoader") and _LIGHTNING.search(text) is not None


def _named_epoch(text: str) -> re.Match[str] | None:
    found = _EPOCH.search(text) if _has(text, "poch", "POCH") else None
    if found is not None and found["plural"] and not found["total"]:
        return None
    if found is None and "%|" in text:
        found = _YOLO_EPOCH.match(text)
    return found or (_TIMM_EPOCH.search(text) if "Train: " in text else None)


def _epoch(text: str, found: re.Match[str], counter: Counter | None) -> Epoch | None:
    groups = found.groupdict()
    number, total = float(groups["number"]), groups.get("total")
    if total is not None and number > float(total):
        return None
    last = None if total is None else float(total)
    if last is not None and _is_lightning(text):
        last += 1  # its rich bar shows the number of the last epoch
    return Epoch(
        number,
        last,
        is_exact=not number.is_integer(),
        is_over=counter is None and _reports_end(text, found.end()),
    )


def _reports_end(text: str, at: int) -> bool:
    """Returns whether a line reports the end of the epoch that it names before `at`.

    Such a line says so, or values such as the loss follow. A line with only a learning rate is a heading.
    """
    if _BEGINS.search(text):
        return False
    return _ENDS.search(text) is not None or any(c.isdigit() for c in _LEARNING_RATE.sub("", text[at:]))


def _percent(text: str) -> float | None:
    found = _PERCENT.search(text)
    if found is None or is_build_output(text[found.end() :]):
        return None
    value = float(found["before"] or found["after"])
    return value if value <= 100 else None
