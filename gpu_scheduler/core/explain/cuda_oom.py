"""Decides from the end of a log whether a failed program ended because GPU memory was exhausted.

A job that ran out of GPU memory is retried with more memory. A line that reports exhausted memory (because it
matches one of the SIGNATURES) is therefore not enough. That error must also have ended the program: the
program must not have continued after it, and no other error may follow, except one that results from it (an
error of a launcher or of another rank, or one that was raised while the first error was being handled).
Exhausted host memory never counts. A program that catches the error may print its own message and exit with
an error; such a message counts only among the last lines.

One similar message does not count: vLLM's "max seq len ... larger than the maximum number of tokens that can
be stored in KV cache". In that case no allocation has failed. The requested length does not fit into the part
of the GPU that vLLM always takes, so the job would fail again however much memory the scheduler allocated to
it.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from gpu_scheduler.core.explain.log_end import (
    ADVICE,
    AFTERMATH,
    CLAUSE_END,
    CLAUSE_START,
    CONSEQUENCE,
    HANDLED,
    HOST_MEMORY,
    KILLING_ERROR,
    LOGGED,
    MENTION,
    MENTIONS_MEMORY,
    PRINTED_ERROR,
    PYTHON_ERROR,
    RECOVERED,
    REPORTS_ANOTHER,
    LogEnd,
    root_cause,
    with_continuation,
)

# Messages with which libraries report exhausted GPU memory, as quoted by users of these libraries.


class Signature(NamedTuple):
    """One library's message about exhausted GPU memory, with an example that only this signature matches.

    is_error_name: the pattern matches the name of an error, which also occurs in settings and in prose.
    """

    name: str
    pattern: re.Pattern[str]
    example: str
    is_error_name: bool = False


def _signature(name: str, pattern: str, example: str, *, is_name: bool = False) -> Signature:
    return Signature(name, re.compile(pattern), example, is_name)


SIGNATURES = (
    _signature(
        "PyTorch",
        r"(?:CUDA|HIP) out of memory(?:\.? Tried to allocate| occurred when)"
        r"|(?:Error|Exception): (?:CUDA|HIP) out of memory",
        "RuntimeError: CUDA out of memory. Tried to allocate 1.02 GiB (GPU 0; 11.17 GiB total capacity)",
    ),
    _signature(
        "PyTorch, the class",
        r"\btorch\.(?:cuda\.)?OutOfMemoryError(?::\s*\S|$)|\bOutOfMemoryError: Allocation on device",
        "torch.OutOfMemoryError: Allocation on device 0 would exceed allowed memory. (out of memory)",
        is_name=True,
    ),
    _signature(
        "PyTorch without NVML figures",
        r'NVML_SUCCESS == .{0,200}INTERNAL ASSERT FAILED at ".{0,200}CUDACachingAllocator\.cpp"',
        'NVML_SUCCESS == r INTERNAL ASSERT FAILED at "../c10/cuda/CUDACachingAllocator.cpp":830',
    ),
    _signature(
        "accelerate", r"\bNo executable batch size found\b", "No executable batch size found, reached zero."
    ),
    _signature(
        "CUDA, message",
        r"(?i:\b(?:cuda|hip|rocm) (?:runtime |driver )?error\b.{0,200}?\bout of memory)",
        "RuntimeError: CUDA error: out of memory",
    ),
    _signature(
        "CUDA, error name",
        r"CUDA_ERROR_OUT_OF_MEMORY|cudaErrorMemoryAllocation|hipErrorOutOfMemory",
        "CudaAPIError: [2] Call to cuMemAlloc results in CUDA_ERROR_OUT_OF_MEMORY",
    ),
    _signature(
        "cudaMalloc (ggml, MXNet, Faiss, PyCUDA)",
        r"\b(?:(?:cuda|hip)Malloc(?!Host)\w*|cuMem\w+)(?:\(.{0,200}?\))?(?: retry)?"
        r" (?:failed(?: with error)?:?|error) out of memory",
        "allocating 7825.94 MiB on device 0: cudaMalloc failed: out of memory",
    ),
    _signature(
        "CUDA failed (CTranslate2, NCCL, ONNX Runtime)",
        r"(?i:\bcuda fail(?:ed|ure)\b.{0,200}?\bout of memory)",
        "RuntimeError: CUDA failed with error out of memory",
    ),
    _signature("NCCL", r"\bFailed to CUDA calloc\b", "Failed to CUDA calloc async 608 bytes"),
    _signature(
        "CUDA libraries",
        r"\b(?:CU|HIP)(?:BLAS|DNN|SOLVER|SPARSE|TENSOR)_STATUS_ALLOC_FAILED"
        r"|\b(?:CU|HIP)FFT_ALLOC_FAILED|\bCURAND_STATUS_ALLOCATION_FAILED",
        "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
    ),
    _signature(
        "cuDNN, out of memory",
        r"CUDNN_STATUS_(?:INTERNAL_ERROR|EXECUTION_FAILED)\b.{0,200}?\bout of memory",
        "cuDNN error: CUDNN_STATUS_INTERNAL_ERROR (out of memory)",
    ),
    _signature(
        "XLA",
        r"\bOut of memory while trying to allocate\b|\bFailed to allocate \d+ bytes for new constant"
        r"|\bFailed to allocate request for .{0,60} on device ordinal",
        "XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to allocate 7406166528 bytes.",
    ),
    _signature(
        "TensorFlow",
        r"OOM when allocating tensor[^/]{0,1000}/\S{0,200}[Gg][Pp][Uu]:\d",
        "OOM when allocating tensor with shape[128,768] and type float on /job:localhost/device:GPU:0",
    ),
    _signature(
        "TensorFlow's allocator",
        r"Allocator \(GPU_\d+_bfc\) ran out of memory",
        "W tensorflow/core/common_runtime/bfc_allocator.cc:479] Allocator (GPU_0_bfc) ran out of memory",
    ),
    _signature(
        "CuPy",
        r"\bOut of memory allocating [\d,]+ bytes \(allocated so far"
        r"|\bout of memory to allocate \d+ bytes \(total|\bcupy\.cuda\.memory\.OutOfMemoryError",
        "Out of memory allocating 25,600,000 bytes (allocated so far: 3,635,267,072 bytes).",
    ),
    _signature(
        "RMM (cuDF, cuML)",
        r"std::bad_alloc: out_of_memory|\bRMM_ERROR_OUT_OF_MEMORY\b|\bRMM failure.{0,300}pool size exceeded",
        "MemoryError: std::bad_alloc: out_of_memory: RMM failure at: Maximum pool size exceeded",
    ),
    _signature(
        "PaddlePaddle",
        r"\bOut of memory error on GPU \d",
        "Out of memory error on GPU 0. Cannot allocate 25MB",
    ),
    _signature(
        "ONNX Runtime",
        r"BFCArena::AllocateRawInternal.{0,300}Failed to allocate memory for requested buffer",
        "BFCArena::AllocateRawInternal(size_t) Failed to allocate memory for requested buffer of size 6",
    ),
    _signature(
        "TensorRT",
        r"Cuda Runtime \(out of memory\)|\bError Code 2: OutOfMemory\b",
        "[defaultAllocator.cpp::allocate::31] Error Code 1: Cuda Runtime (out of memory)",
    ),
    _signature(
        "Triton server", r"(?i:\bfailed to allocate (?:GPU|CUDA) memory\b)", "failed to allocate GPU memory"
    ),
    _signature(
        "vLLM",
        r"\bNo available memory for the cache blocks\b"
        r"|\bFree memory on device\b.{0,100}\bis less than desired GPU memory utilization\b",
        "ValueError: No available memory for the cache blocks.",
    ),
    _signature(
        "SGLang",
        r"\bNot enough memory\. Please try .{0,40}--mem-fraction-static",
        "Not enough memory. Please try to increase --mem-fraction-static.",
    ),
    _signature(
        "Text Generation Inference",
        r"\bNot enough memory to handle \d+ (?:prefill|total) tokens",
        'Error: Warmup(Generation("Not enough memory to handle 4096 prefill tokens."))',
    ),
    _signature(
        "bitsandbytes",
        r"\bError out of memory at line \d+ in file\b",
        "Error out of memory at line 8 in file ops.cu",
    ),
    _signature(
        "CatBoost",
        r"\bTOutOfMemoryError\b|\bError: Out of memory\. Requested [\d.]+(?: MB)?; Free\b",
        "Error: Out of memory. Requested 8880 MB; Free 5902.061425 MB",
    ),
    _signature(
        "LightGBM", r"\[CUDA\] out of memory\b", "[LightGBM] [Fatal] [CUDA] out of memory cuda_utils.hpp 37"
    ),
    _signature(
        "OpenCV",
        r"Gpu API call(?:\) | \()out of memory",
        "(-217:Gpu API call) out of memory in function 'allocate'",
    ),
    _signature(
        "CUDA.jl, Blender",
        r"(?i:\bout of GPU memory\b)",
        "ERROR: Out of GPU memory trying to allocate 8.000 GiB",
    ),
    _signature("Vulkan", r"\bErrorOutOfDeviceMemory\b", "vk::Device::allocateMemory: ErrorOutOfDeviceMemory"),
)

#: Every line that matches a signature contains at least one of these, in upper or lower case.
KEYWORDS = (
    *("out of memory", "outofmemory", "out_of_memory", "out of gpu memory"),
    *("outofdevicememory", "memoryallocation", "cudacachingallocator"),
    *("oom when allocating", "alloc_failed", "allocation_failed", "failed to allocate", "cuda calloc"),
    *("no available memory", "free memory on device", "not enough memory"),
    *("no executable batch size", "pool size exceeded"),
)

#: Number of characters on each side of a report that are searched for context.
_CONTEXT_CHARS = 200


def has_keyword(text: str) -> bool:
    """Returns whether the text may match a signature."""
    lower = text.lower()
    return any(word in lower for word in KEYWORDS)


def is_signature(text: str) -> bool:
    """Returns whether the line is a library's report that GPU memory is exhausted."""
    for row in SIGNATURES:
        found = row.pattern.search(text)
        if found is not None:
            before = text[: found.start()]
            return not ADVICE.search(before) and not (
                row.is_error_name and MENTION.search(before[-_CONTEXT_CHARS:])
            )
    return False


def is_printed_oom(text: str) -> bool:
    """Returns whether the line is a program's own message that it ran out of GPU memory."""
    if HANDLED.search(text):
        return False
    for found in PRINTED_ERROR.finditer(text):
        before = text[max(0, found.start() - _CONTEXT_CHARS) : found.start()]
        behind = text[found.end() : found.end() + _CONTEXT_CHARS]
        if CLAUSE_START.search(before) and CLAUSE_END.match(behind):
            return not MENTION.search(before) and not ADVICE.search(before)
    return False


#: Maximum number of ordinary output lines after an out-of-memory error; if more lines follow, the program
#: must have continued.
_MAX_LINES_AFTER = 40
#: The same limit for lines that a library also logs when its caller can do without the memory, and for the
#: program's own messages.
_MAX_LINES_AFTER_LOGGED = 5

#: PyTorch's figures for a failed allocation.
_UNALLOCATED = re.compile(
    r"(\d{1,9}(?:\.\d{1,9})?) ([KMG]iB|bytes) is allocated by PyTorch.{0,200}?"
    r" (\d{1,9}(?:\.\d{1,9})?) ([KMG]iB|bytes) is reserved by PyTorch but unallocated"
)
_BYTES = {"bytes": 1.0, "KiB": 2.0**10, "MiB": 2.0**20, "GiB": 2.0**30}
#: Part of the allocated memory from which on unallocated memory is much.
_MUCH = 0.1

_COLOUR = re.compile(r"\x1b\[[\d;]*m")
#: SGLang prints this when one of its processes has failed. It then kills itself, and the shell reports
#: "Killed".
_SELF_KILL = "Received sigquit from a child process"


def cuda_oom(end: LogEnd) -> str | None:
    """Returns the line that reports the GPU memory error that ended the program; None if there is none."""
    if not has_keyword(_COLOUR.sub("", end.tail)):
        return None
    lines = end.lines
    ooms = {index for index in range(len(lines)) if _is_oom(end, index)}
    if not ooms:
        return None
    last = end.loose_error_index() if end.final_traceback is None else end.final_traceback.index
    ends = [i for i in range(len(lines)) if i in ooms or _is_other_error(end, i, is_last=i == last)]
    first_failed = root_cause(lines).get("rank", "").partition(" ")[0]
    of_first_failed = [i for i in ends if first_failed and lines[i].rank in ("", first_failed)]
    index = (of_first_failed or ends)[-1]
    return lines[index].text.strip() if index in ooms and _is_near_end(end, index) else None


def is_fragmented(tail: str) -> bool:
    """Returns whether PyTorch held much memory that it could not use when memory ran out.

    tail: the end of the log. The last of several such errors counts.
    """
    found = _UNALLOCATED.findall(tail)
    if not found:
        return False
    used, used_unit, unused, unused_unit = found[-1]
    return float(unused) * _BYTES[unused_unit] > _MUCH * float(used) * _BYTES[used_unit]


def _is_oom(end: LogEnd, index: int) -> bool:
    """Returns whether the line reports exhausted GPU memory from which the program did not recover."""
    text = end.lines[index].text
    if not has_keyword(text) or _is_source_line(end, index):
        return False
    if HOST_MEMORY.search(text) or RECOVERED.search(text):
        return False
    return is_signature(text) or is_printed_oom(text)


def _is_other_error(end: LogEnd, index: int, *, is_last: bool) -> bool:
    """Returns whether the line shows a recovery, or a different cause of the end than the lines above.

    is_last: whether this error ended the program. If so, the line counts whatever the error's class is
    called.
    """
    text = end.lines[index].text
    if RECOVERED.search(text) and MENTIONS_MEMORY.search(text):
        return True
    if not (is_last or PYTHON_ERROR.fullmatch(text) or KILLING_ERROR.fullmatch(text)):
        return False
    message = with_continuation(end.lines, index)
    if REPORTS_ANOTHER.search(message) or CONSEQUENCE.search(message):
        return False
    if text == "Killed" and index and _SELF_KILL in end.lines[index - 1].text:
        return False
    traceback = end.tracebacks.get(index)
    return traceback is None or not (traceback.is_chained or traceback.is_harmless)


def _is_near_end(end: LogEnd, index: int) -> bool:
    """Returns whether only a few lines of output follow this line."""
    text, rank, _ = end.lines[index]
    later = (line.text for line in end.lines[index + 1 :] if line.rank in ("", rank))
    near = _MAX_LINES_AFTER
    if LOGGED.search(text) or not is_signature(text):
        near = _MAX_LINES_AFTER_LOGGED
    return sum(not AFTERMATH.match(text) for text in later) <= near


def _is_source_line(end: LogEnd, index: int) -> bool:
    """Returns whether the line is source code quoted in a traceback."""
    text, rank, _ = end.lines[index]
    above = next((line.text for line in reversed(end.lines[:index]) if line.rank == rank), "")
    return text.startswith(" ") and above.lstrip().startswith('File "')
