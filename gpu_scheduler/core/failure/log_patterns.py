"""Patterns for log lines: errors of programs, and the words around a report of exhausted GPU memory."""

from __future__ import annotations

import re

#: A line that contains one of these texts is about host memory or does not report a failure, even if a
#: signature matches it.
HOST_MEMORY = re.compile(
    r"\bbytes on host\b|\bpinned (?:system )?memory\b|host_mem|_nchwc"
    r"|\bcaller indicates that this is not a failure\b"
)
#: Words before a signature that show that the line only gives advice about a possible error.
ADVICE = re.compile(r"(?i)\b(?:if|when|in case) (?:you|there)\b")
#: Lines that a library also logs when its caller can do without the memory.
LOGGED = re.compile(r"\b[IWE]\d* (?:tensorflow|external)/|^[IW]\d{4} |\bWARN(?:ING)?\b|Warning: ")
#: Words that show that the program continues.
RECOVERED = re.compile(
    r"(?i)(?:^\s*|[.,;:!|-]\s+|\(|\b(?:and|so|now|then|will)\s+)(?:retry(?:ing)?|reducing|decreasing|lowering|halving"
    r"|skipp(?:ing|ed)(?! tactic)|falling back|attempting to recover|trying (?:again|with|batch|a smaller))\b"
    r"|\bbatch.{0,20} (?:reduced|halved|lowered) to\b"
)
MENTIONS_MEMORY = re.compile(r"(?i)batch|memory|\boom\b")
#: The last line of a traceback, or an error that is printed in the same form.
PYTHON_ERROR = re.compile(r"(?:[^\W\d]\w*\.)*\w*(?:Error|Exception)(?:\(\w+\))?(?::(?: .*)?)?")
#: The last lines of programs that abort or are killed.
KILLING_ERROR = re.compile(
    r"(?s)\s+what\(\):  .*|\S+: error: .*|panic: .*|Killed|.*: line \d+: +\d+ Killed\b.*|.*[Oo]om[-_]kill.*"
    r"|.*\bOut of memory: Kill.*"
)
#: Errors that only report that another process or an inner engine has failed.
REPORTS_ANOTHER = re.compile(
    r"ChildFailedError|BrokenProcessPool|TerminatedWorkerError|TrainingFailedError|TuneError|SignalException"
    r"|ShardCannotStart|ActorDiedError|\bEngine (?:core|process)\b|\bEngineCore\b|\bWorkerProc\b"
    r"|\bWorker failed with error|\bnon-?zero\b|\b[Ee]xit (?:code|status)\b|\breturn code\b"
    r"|\b(?:died|exited) unexpectedly|in DataLoader worker|\b[Pp]rocess \d+ terminated with"
    r"|\btask \S+ Terminated|\bInitialization failed|\bfor LlamaCpp\b"
    r"|(?i:\b(?:failed|unable|could not)\b.{0,6}\b(?:load|create)\b.{0,20}\b(?:model|llama))"
)
#: Errors that follow from the death of another process, or from a library that could not be set up.
CONSEQUENCE = re.compile(
    r"(?i)\bnccl|\bDist(?:Store|Network)Error|HorovodInternal|Connection ?(?:closed|reset|refused)"
    r"|Broken ?pipe|\bEOFError|Socket Timeout|TCPStore|\bprocess group\b|coordination service"
    r"|Failed to get convolution algorithm|DNN library is not found|Blas \w+ launch failed|/pymp-"
)
#: Lines that a failing program or its launcher prints at the end: stack traces, separators, summaries and
#: memory maps.
AFTERMATH = re.compile(
    r"\s|$|frame #\d|#\d+ |\[New LWP|\[bt\]|[-=*_#~^|+]{3,}|wandb: |[IWEF]\d{4} "
    r"|.*\b[IWE] (?:tensorflow|external)/|.*\bNCCL INFO\b|.*\bKilling subprocess\b"
)
#: Text that a program prints after it has caught the error. The same words occur in help texts, settings and
#: statistics, so they count as a report of exhausted memory only between CLAUSE_START and CLAUSE_END.
PRINTED_ERROR = re.compile(
    r"(?i:\b(?:CUDA|HIP) out of memory\b)"
    r"|(?<![\w.])(?:(?:CUDA |torch\.(?:cuda\.)?)?OutOfMemoryError)\b(?!: (?!.{0,200}(?:CUDA|HIP|GPU)\b))"
)
#: Start of a clause: the start of the line, a log's time or level, punctuation, some verbs, or the message
#: field of a JSON log.
CLAUSE_START = re.compile(
    r"(?i)(?:^\W*|[:\]>|!*)]\s*|[^\w\s\x00-\x7f]\s*|[.-]\s+|\d\d:\d\d(?::[\d.,]+)?\s+|<class '"
    r"|\b(?:error|exception|fatal|critical|warning|info|caught|got|hit|encountered|raised|due to|because of"
    r"|caused by|(?:failed|crashed|died|ended|exit(?:ed|ing)|abort(?:ed|ing)|stopp(?:ed|ing)|terminated)"
    r" (?:with|on|by|from))\s+(?:an? |the )?|\"(?:message|msg|error|exception|event|reason)\": ?\")$"
)
#: End of a clause, or words that introduce the time or place of the error.
CLAUSE_END = re.compile(
    r"(?i)(?:'>|\(\))?(?:\s+(?:error|exception))?"
    r"(?:\s*$|[.!]+(?:[\s\"')*]|$)|\s*[;)*\"]|,\s|\s+\(|\s+[^\w\s|]+\s|:\s+(?![\d.]+\b)\S+\s+\S"
    r"|\s+(?:encountered|occurred|detected|raised|caught|during|while|at|in|on|for|with)\b)"
)
#: Words before the name of an error that show that the line only mentions the error, as in a setting, a list
#: item, advice or a remark about another run.
MENTION = re.compile(
    r"(?i)(?:^\s*-\s+|^\W*(?:if|when|in case|note|hint|tip|to avoid)\b.*|[=(\[{,/`]\s*(?:<class )?['\"]?"
    r"|\b(?:previous|earlier|prior|last (?:run|try|attempt|time)|of a run|expected|known|simulat\w+)\b.*"
    r"|(?:^|[\W_])(?:on|catch(?:es|ing)?|except|handl\w*|retry\w*|retries|ignor\w*|skip\w*|notes?|hints?"
    r"|tips?|see|faq|examples?|patterns?|match\w*|expect\w*|avoid\w*|prevent\w*|recover\w*|common|possible"
    r"|oom_\w+)\W*|\w_oom\W*)$"
)
#: Words that show that the program handled the error and continued, or that it counts such errors.
HANDLED = re.compile(
    r"(?i)\b(?:handl(?:ed|ers?|ing)|recover(?:ed|ing|y)|ignor(?:ed|ing)|continuing|resum(?:ed|ing)|survived"
    r"|counte?r?|events?|policy|hook|callback|enabled|disabled|supported)\b|\w=(?:True|False|None)\b"
)
#: Errors that are not Python exceptions: those of the shell, of argparse and similar parsers, of a Python
#: interpreter that cannot open its script, and of C++ programs that abort.
NON_PYTHON_ERROR = re.compile(
    r"(?s).*: (?:command not found|No such file or directory|Permission denied|Is a directory"
    r"|Address already in use|Too many open files|cannot execute.*)"
    r"|.*: Exec format error|\S+: error: .*|.*can't open file .*|\s+what\(\):  .*|.*Fatal Python error: .*"
)
