"""Logs of jobs that ran out of GPU memory in the words of each library, and logs that only look alike."""

from __future__ import annotations

import time
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_scheduler.core.failure.oom import cuda_oom
from gpu_scheduler.core.failure.oom_signatures import KEYWORDS, PRINTED_ERROR, SIGNATURES, Signature

ROWS = [row.pattern for row in SIGNATURES]

TORCH = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 4.35 GiB. GPU 3 has a total capacity of"
    " 63.42 GiB of which 1.70 GiB is free. If reserved but unallocated memory is large try setting"
    " PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid fragmentation."
)
OLD_TORCH = (
    "RuntimeError: CUDA out of memory. Tried to allocate 1.02 GiB (GPU 0; 11.17 GiB total capacity;"
    " 10.90 GiB already allocated; 576.00 KiB free; 30.96 MiB cached)"
)
GGML = (
    "ggml_backend_cuda_buffer_type_alloc_buffer: allocating 7825.94 MiB on device 0:"
    " cudaMalloc failed: out of memory"
)
XLA = (
    "jaxlib.xla_extension.XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to allocate"
    " 4770354232 bytes."
)
TF_ERRORS = "tensorflow.python.framework.errors_impl"
TF_GPU = (
    "OOM when allocating tensor with shape[16,64,64,64] and type float on"
    " /job:localhost/replica:0/task:0/device:GPU:0 by allocator GPU_0_bfc"
)
TF_CPU = TF_GPU.replace("GPU:0", "CPU:0").replace("GPU_0_bfc", "cpu")
TF_LOG = (
    "2023-01-31 10:00:00.000000: W tensorflow/core/common_runtime/bfc_allocator.cc:479]"
    " Allocator (GPU_0_bfc) ran out of memory trying to allocate 2.00GiB"
)
TF_CUDNN = (
    "E tensorflow/stream_executor/cuda/cuda_dnn.cc:336]"
    " Could not create cudnn handle: CUDNN_STATUS_ALLOC_FAILED"
)
TF_CUBLAS = (
    "E tensorflow/stream_executor/cuda/cuda_blas.cc:226]"
    " failed to create cublas handle: CUBLAS_STATUS_ALLOC_FAILED"
)
VLLM_FREE = (
    "ValueError: Free memory on device (3.22/4.0 GiB) on startup is less than desired GPU memory"
    " utilization (0.9, 3.6 GiB). Decrease GPU memory utilization or reduce GPU memory used by other"
    " processes."
)
ORT = (
    "/onnxruntime_src/onnxruntime/core/framework/bfc_arena.cc:376 void* onnxruntime::BFCArena::"
    "AllocateRawInternal(size_t, bool, onnxruntime::Stream*) Failed to allocate memory for requested"
    " buffer of size 643840"
)
PADDLE = "Out of memory error on GPU 0. Cannot allocate 25.002197MB memory, available memory is only 15MB."
NCCL_REMOTE = (
    "torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:1970, remote process exited"
    " or there was a network error, NCCL version 2.21.5"
)
NCCL_CUDA = "torch.distributed.DistBackendError: NCCL error in: NCCLUtils.hpp:317, unhandled cuda error"
ABORT = "terminate called after throwing an instance of 'c10::Error'\n  what():  CUDA error: out of memory\n"
ABORTED = "what():  CUDA error: out of memory"
CHILD_FAILED = """\
Traceback (most recent call last):
  File "/env/bin/torchrun", line 8, in <module>
    sys.exit(main())
  File "/env/lib/torch/distributed/launcher/api.py", line 269, in launch_agent
    raise ChildFailedError(
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
============================================================
train.py FAILED
------------------------------------------------------------
Failures:
  <NO_OTHER_FAILURES>
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2025-03-25_20:57:27
  host      : node1
  rank      : 1 (local_rank: 1)
  exitcode  : 1 (pid: 2631)
  error_file: <N/A>
  traceback : To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html
============================================================
"""
PROGRESS = "".join(f"epoch {n}: loss 0.{n}\n" for n in range(41))
DURING = "\nDuring handling of the above exception, another exception occurred:\n\n"
DIRECT = "\nThe above exception was the direct cause of the following exception:\n\n"


def died(error: str) -> str:
    """Returns a traceback that ends with the error."""
    return f'Traceback (most recent call last):\n  File "/x/train.py", line 12, in main\n    run()\n{error}\n'


def with_process_mark(process: str, text: str) -> str:
    """Returns the text with a process prefix before each line."""
    return "".join(f"{process}{line}\n" for line in text.splitlines())


CALLED = died("subprocess.CalledProcessError: Command '['python', 't.py']' returned non-zero exit status 1.")
ENGINE = died(
    "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}"
)
MISTAKE = died("ValueError: bad learning rate: -1")


class Case(NamedTuple):
    name: str
    tail: str
    expected: str | None


def raised_oom(name: str, error: str, after: str = "") -> Case:
    """Returns a case whose traceback ends with the error, which is the expected line."""
    return Case(name, died(error) + after, error)


def printed_oom(name: str, line: str, after: str = "") -> Case:
    return Case(name, f"starting\n{line}\n{after}", line.strip())


def no_oom(name: str, *tail: str) -> Case:
    return Case(name, "".join(tail), None)


# The comment before each case names the program that printed the text.
OOMS = (
    # PyTorch up to 1.12
    Case("torch-runtime-error", PROGRESS + died(OLD_TORCH), OLD_TORCH),
    # PyTorch 1.13 to 2.4
    raised_oom("torch-cuda-class", TORCH.replace("torch.", "torch.cuda.")),
    # PyTorch from 2.5
    raised_oom("torch-class", TORCH),
    # PyTorch, the class without a message
    raised_oom("torch-bare-class", "torch.OutOfMemoryError"),
    # PyTorch, coloured by Python 3.13
    Case(
        "torch-coloured",
        died("\x1b[1;35mtorch.OutOfMemoryError\x1b[0m: \x1b[35mCUDA out of memory. Tried to allocate\x1b[0m"),
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate",
    ),
    # PyTorch, coloured by a filter that marks words
    Case(
        "torch-marked",
        died("RuntimeError: CUDA \x1b[31mout\x1b[0m of memory. Tried to allocate 2 GiB"),
        "RuntimeError: CUDA out of memory. Tried to allocate 2 GiB",
    ),
    # PyTorch under tqdm
    Case("torch-tqdm", f"  1%|  | 3/720\r  2%|  | 4/720\n{died(TORCH)}  2%|  | 4/720 [00:04<02:52]\n", TORCH),
    # PyTorch, backend cudaMallocAsync
    raised_oom(
        "torch-malloc-async",
        "torch.cuda.OutOfMemoryError: Allocation on device 5 would exceed allowed memory. (out of memory)",
        "Currently allocated     : 54.14 GiB\nRequested               : 686.41 MiB\n",
    ),
    # PyTorch, the same as rich prints it
    printed_oom("torch-rich", "OutOfMemoryError: Allocation on device 0 would exceed allowed memory."),
    # PyTorch, the first tensor on a full device
    raised_oom(
        "torch-cuda-error",
        "RuntimeError: CUDA error: out of memory",
        "CUDA kernel errors might be asynchronously reported at some other API call.\n",
    ),
    # PyTorch from 2.8
    raised_oom("torch-accelerator-error", "torch.AcceleratorError: CUDA error: out of memory"),
    # PyTorch with expandable segments
    raised_oom("torch-driver-error", "RuntimeError: CUDA driver error: out of memory"),
    # PyTorch 0.4
    raised_oom(
        "torch-thc", "RuntimeError: cuda runtime error (2) : out of memory at /pytorch/THCStorage.cu:58"
    ),
    # PyTorch on ROCm
    raised_oom("torch-hip", "RuntimeError: HIP out of memory. Tried to allocate 1.50 GiB."),
    # PyTorch on ROCm, the runtime's error
    raised_oom("torch-hip-error", "RuntimeError: HIP error: hipErrorOutOfMemory"),
    # PyTorch where NVML fails
    raised_oom(
        "torch-nvml",
        'RuntimeError: NVML_SUCCESS == INTERNAL ASSERT FAILED at "../c10/cuda/CUDACachingAllocator.cpp":830',
    ),
    # PyTorch, DataParallel
    Case(
        "torch-replica",
        died("torch.OutOfMemoryError: Caught OutOfMemoryError in replica 1 on device 1.")
        + "Original "
        + died(TORCH),
        TORCH,
    ),
    # PyTorch, libtorch
    printed_oom(
        "torch-what",
        "  what():  CUDA out of memory. Tried to allocate 20.00 MiB.",
        "Exception raised from malloc at CUDACachingAllocator.cpp:1219 (most recent call first):\n"
        + "".join(f"frame #{n}: c10::Error::Error() (0x7f in /env/lib/libc10.so)\n" for n in range(60))
        + "Aborted (core dumped)\n",
    ),
    # PyTorch in a program that prints its errors
    printed_oom("torch-printed", f"ERROR - {OLD_TORCH}", "giving up\n"),
    # PyTorch in a program that words its errors
    printed_oom("torch-reworded", "__main__.TrainError: CUDA out of memory at step 3"),
    # PyTorch within an exception group
    Case(
        "torch-group",
        "  + Exception Group Traceback (most recent call last):\n"
        '  |   File "/x/t.py", line 7, in <module>\n'
        "  | ExceptionGroup: unhandled errors in a TaskGroup (1 sub-exception)\n"
        "  +-+---------------- 1 ----------------\n"
        "    | Traceback (most recent call last):\n"
        '    |   File "/x/t.py", line 1, in f\n'
        f"    | {TORCH}\n"
        "    +------------------------------------\n",
        TORCH,
    ),
    # accelerate, find_executable_batch_size
    raised_oom("accelerate", "RuntimeError: No executable batch size found, reached zero."),
    # cuBLAS in PyTorch
    raised_oom(
        "cublas", "RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"
    ),
    # cuDNN in PyTorch
    raised_oom("cudnn", "RuntimeError: cuDNN error: CUDNN_STATUS_ALLOC_FAILED"),
    # cuDNN, an internal error that names its cause
    raised_oom(
        "cudnn-internal", "RuntimeError: CUDNN_STATUS_INTERNAL_ERROR: cudaStreamCreate: out of memory"
    ),
    # cuFFT in CuPy
    raised_oom("cufft", "cupy.cuda.cufft.CuFftError: CUFFT_ALLOC_FAILED"),
    # cuSOLVER in PyTorch
    raised_oom(
        "cusolver",
        "RuntimeError: cusolver error: CUSOLVER_STATUS_ALLOC_FAILED, when calling `cusolverDnCreate`",
    ),
    # cuRAND
    printed_oom("curand", "  what():  CURAND_STATUS_ALLOCATION_FAILED"),
    # NCCL 2.19 in PyTorch
    Case(
        "nccl-calloc",
        died(NCCL_CUDA)
        + "ncclUnhandledCudaError: Call failed.\nLast error:\nFailed to CUDA calloc 8 bytes\n",
        "Failed to CUDA calloc 8 bytes",
    ),
    # NCCL 2.21 in PyTorch
    Case(
        "nccl-failure",
        died(NCCL_CUDA) + "Last error:\nCuda failure 2 'out of memory'\n",
        "Cuda failure 2 'out of memory'",
    ),
    # NCCL before 2.18 in PyTorch: only its own log names the cause
    printed_oom(
        "nccl-warning",
        "node1:392:494 [2] enqueue.cc:43 NCCL WARN Cuda failure 'out of memory'",
        "node1:392:494 [2] NCCL INFO misc/argcheck.cc\n" * 60
        + died(
            "RuntimeError: NCCL error in: ProcessGroupNCCL.cpp:911, unhandled cuda error, NCCL version 2.10.3"
        ),
    ),
    # JAX, with its map of buffers
    raised_oom(
        "jax",
        XLA,
        "BufferAssignment OOM Debugging.\nPeak buffers:\n"
        + "\tBuffer 1:\n\t\tSize: 6.00MiB\n\t\t=====\n\n" * 60,
    ),
    # JAX, its traceback filtered
    Case(
        "jax-filtered",
        died(f"jax._src.traceback_util.UnfilteredStackTrace: {XLA}")
        + f"\nThe stack trace below excludes JAX-internal frames.\n--------------------\n{DIRECT}{died(XLA)}",
        XLA,
    ),
    # JAX before 0.3
    raised_oom(
        "jax-request",
        "RuntimeError: Resource exhausted: Failed to allocate request for 32.00MiB (3B) on device ordinal 0",
    ),
    # JAX, a constant of the program
    raised_oom(
        "jax-constant", "XlaRuntimeError: INTERNAL: Failed to allocate 98697216 bytes for new constant"
    ),
    # TensorFlow 2, eager
    raised_oom("tensorflow-eager", f"{TF_ERRORS}.ResourceExhaustedError: {TF_GPU} [Op:StridedSliceGrad]"),
    # TensorFlow 2, a graph: the cause stands lines after the class
    Case(
        "tensorflow-graph",
        f"{TF_LOG}\n"
        + "2023-01-31 10:00:00.000001: I tensorflow/core/common_runtime/bfc_allocator.cc:1101] Chunk\n" * 90
        + died(f"{TF_ERRORS}.ResourceExhaustedError: Graph execution error:")
        + f"\n{TF_GPU}\n\t [[{{{{node model/d}}}}]]\n"
        "Hint: If you want to see a list of allocated tensors when OOM happens, add it to RunOptions.\n"
        " [Op:__inference_train_function_1234]\n",
        TF_GPU,
    ),
    # TensorFlow 1
    Case(
        "tensorflow-roots",
        died(f"{TF_ERRORS}.ResourceExhaustedError: 2 root error(s) found.")
        + f"  (0) Resource exhausted: {TF_GPU}\n\t [[{{{{node resnet/conv1}}}}]]\n0 successful operations.\n",
        f"(0) Resource exhausted: {TF_GPU}",
    ),
    # TensorFlow, nothing but the allocator's warning and its map
    printed_oom(
        "tensorflow-log", TF_LOG, "2023-01-31 10:00:00: I tensorflow/core/bfc_allocator.cc:1101] Chunk\n" * 90
    ),
    # TensorFlow 2.4, cuDNN
    printed_oom(
        "tensorflow-cudnn", TF_CUDNN, died(f"{TF_ERRORS}.UnknownError: Failed to get convolution algorithm.")
    ),
    # TensorFlow 2.9, cuDNN
    printed_oom(
        "tensorflow-dnn", TF_CUDNN, died(f"{TF_ERRORS}.UnimplementedError: DNN library is not found.")
    ),
    # TensorFlow 2.1, cuBLAS
    printed_oom(
        "tensorflow-cublas", TF_CUBLAS, died(f"{TF_ERRORS}.InternalError: Blas GEMM launch failed : m=32")
    ),
    # CuPy
    raised_oom(
        "cupy",
        "cupy.cuda.memory.OutOfMemoryError: Out of memory allocating 25 bytes (allocated so far: 3 bytes).",
    ),
    # CuPy, the class without a message
    raised_oom("cupy-class", "cupy.cuda.memory.OutOfMemoryError"),
    # Chainer, CuPy's message without the class
    printed_oom(
        "chainer",
        "Exception in main training loop: out of memory to allocate 163840000 bytes (total 1673061376 bytes)",
    ),
    # Numba
    raised_oom(
        "numba",
        "numba.cuda.cudadrv.driver.CudaAPIError: [2] Call to cuMemAlloc results in CUDA_ERROR_OUT_OF_MEMORY",
    ),
    # PyCUDA
    raised_oom("pycuda", "pycuda._driver.MemoryError: cuMemAlloc failed: out of memory"),
    # cuDF by RMM
    raised_oom(
        "rmm",
        "MemoryError: std::bad_alloc: out_of_memory: CUDA error at: /env/include/rmm/mr/device/"
        "cuda_memory_resource.hpp:70: cudaErrorMemoryAllocation out of memory",
    ),
    # RMM before 0.12
    raised_oom("rmm-old", "rmm.rmm.RMMError: RMM_ERROR_OUT_OF_MEMORY"),
    # RMM, a pool of limited size
    raised_oom(
        "rmm-pool", "MemoryError: std::bad_alloc: RMM failure at:pool.hpp:193: Maximum pool size exceeded"
    ),
    # Thrust
    printed_oom("thrust", "  what():  radix_sort: failed on 1st step: cudaErrorMemoryAllocation"),
    # XGBoost
    raised_oom(
        "xgboost",
        "xgboost.core.XGBoostError: [10:00:00] device_helpers.cuh:428: Memory allocation error on worker 0:"
        " std::bad_alloc: cudaErrorMemoryAllocation: out of memory",
        "- Free memory: 1073741824\n- Requested memory: 90\n\nStack trace:\n  [bt] (0) /env/lib/x.so\n",
    ),
    # PaddlePaddle
    Case(
        "paddle",
        died("SystemError: (Fatal) Operator conv2d raises an paddle::memory::allocation::BadAlloc exception.")
        + "-----------------\nError Message Summary:\n-----------------\nResourceExhaustedError: \n\n"
        f"{PADDLE}\n\nPlease check whether there is any other process using GPU 0.\n"
        "2. If no, please decrease the batch size of your model. \n\n (at /paddle/cuda_allocator.cc:69)\n",
        PADDLE,
    ),
    # MXNet
    raised_oom(
        "mxnet",
        "mxnet.base.MXNetError: [11:18:15] pooled_storage_manager.h:157: cudaMalloc failed: out of memory",
        "Stack trace:\n" + "[bt] (0) /env/libmxnet.so(+0x49640b) [0x7f]\n" * 60,
    ),
    # MXNet 1.6
    Case(
        "mxnet-retry",
        died("mxnet.base.MXNetError: Traceback (most recent call last):")
        + '  File "src/storage/./pooled_storage_manager.h", line 161\n'
        "MXNetError: cudaMalloc retry failed: out of memory\n",
        "MXNetError: cudaMalloc retry failed: out of memory",
    ),
    # ONNX Runtime
    Case(
        "onnxruntime",
        died(
            "onnxruntime.capi.onnxruntime_pybind11_state.RuntimeException: [ONNXRuntimeError] : 6 :"
            " Non-zero status code returned while running Conv node. Name:'/fc1/Conv' Status Message: "
        )
        + f"{ORT}\n",
        ORT,
    ),
    # ONNX Runtime, its CUDA provider
    raised_oom(
        "onnxruntime-cuda",
        "onnxruntime.capi.onnxruntime_pybind11_state.Fail: CUDA failure 2: out of memory ; GPU=0",
    ),
    # TensorRT
    printed_oom(
        "tensorrt",
        "[E] [virtualMemoryBuffer.cpp::resizePhysical::154] Error Code 2: OutOfMemory (Requested size: 16)",
        "[W] Requested amount of GPU memory could not be allocated.\n"
        "[E] Error Code: 9: Skipping tactic 0x0 due to insufficient memory on requested size of 4294967296\n"
        "&&&& FAILED TensorRT.trtexec [TensorRT v100300] # trtexec --onnx=m.onnx\n",
    ),
    # TensorRT 8
    printed_oom(
        "tensorrt-8", "[E] [defaultAllocator.cpp::allocate::31] Error Code 1: Cuda Runtime (out of memory)"
    ),
    # TensorRT 7
    printed_oom(
        "tensorrt-7", "[TRT] [E] ../rtSafe/safeRuntime.cpp (25) - Cuda Error in allocate: 2 (out of memory)"
    ),
    # vLLM, one process
    raised_oom("vllm-blocks", "ValueError: No available memory for the cache blocks. Try increasing it."),
    # vLLM 0.10: the engine's log, its process, the server
    Case(
        "vllm-engine",
        with_process_mark("(EngineCore_DP0 pid=17374) ERROR 09-28 15:47:24 [core.py:718] ", died(VLLM_FREE))
        + "(EngineCore_DP0 pid=17374) Process EngineCore_DP0:\n"
        + with_process_mark("(EngineCore_DP0 pid=17374) ", died(VLLM_FREE))
        + with_process_mark("(APIServer pid=17300) ", ENGINE),
        VLLM_FREE,
    ),
    # vLLM 0.8: the workers' log, the engine's, the server
    Case(
        "vllm-workers",
        with_process_mark(
            "(VllmWorker rank=1 pid=2445) ERROR 05-10 16:00:15 [multiproc_executor.py:470] ", died(TORCH)
        )
        + with_process_mark(
            "ERROR 05-10 16:00:15 [core.py:340] ", died("RuntimeError: Worker failed with error 'see above'")
        )
        + ENGINE,
        TORCH,
    ),
    # vLLM 0.8, the sampler
    raised_oom(
        "vllm-sampler",
        "RuntimeError: CUDA out of memory occurred when warming up sampler with 256 dummy requests.",
    ),
    # vLLM, a worker before the engine starts
    Case(
        "vllm-worker-proc",
        with_process_mark("(Worker_TP1 pid=9) ", died(TORCH))
        + died("Exception: WorkerProc initialization failed due to an exception"),
        TORCH,
    ),
    # SGLang, which kills itself
    Case(
        "sglang",
        "[2025-03-29 18:18:34 TP0] Scheduler hit an exception: "
        + died("RuntimeError: Not enough memory. Please try to increase --mem-fraction-static.")
        + "\n[2025-03-29] Received sigquit from a child process. It usually means it failed.\nKilled\n",
        "RuntimeError: Not enough memory. Please try to increase --mem-fraction-static.",
    ),
    # SGLang, what starts it
    Case(
        "sglang-engine",
        died(TORCH) + died("RuntimeError: Initialization failed. Please see the error messages above."),
        TORCH,
    ),
    # Text Generation Inference
    printed_oom(
        "tgi",
        'Error: Warmup(Generation("Not enough memory to handle 4096 prefill tokens. You need to decrease"))',
        "Error: ShardCannotStart\n",
    ),
    # Triton Inference Server
    printed_oom(
        "triton-server", "E0121 22:12:18.273322 1 server.cc:236] failed to allocate GPU memory for model 'm'"
    ),
    # llama.cpp
    printed_oom(
        "llama-cpp",
        GGML,
        "alloc_tensor_range: failed to allocate CUDA0 buffer of size 8206065664\n"
        "llama_model_load: error loading model: unable to allocate CUDA0 buffer\n"
        "common_init_from_params: failed to load model 'm.gguf'\nmain: error: unable to load model\n",
    ),
    # llama.cpp while it runs
    printed_oom(
        "llama-cpp-pool",
        "CUDA error: out of memory",
        "  current device: 0, in function alloc at ggml-cuda.cu:433\nggml-cuda.cu:77: CUDA error\n"
        + "[New LWP 2445]\n#0  0x00007f in wait4 () from /lib/libc.so.6\n" * 30
        + "Aborted (core dumped)\n",
    ),
    # llama.cpp of 2023
    printed_oom(
        "llama-cpp-2023", "CUDA error 2 at /llama.cpp/ggml-cuda.cu:5509: out of memory", "current device: 0\n"
    ),
    # llama-cpp-python
    printed_oom("llama-cpp-python", GGML, died("ValueError: Failed to create llama_context")),
    # LangChain on llama-cpp-python
    printed_oom(
        "langchain",
        GGML,
        died("pydantic_core._pydantic_core.ValidationError: 1 validation error for LlamaCpp"),
    ),
    # ollama
    printed_oom(
        "ollama",
        GGML,
        "panic: unable to load model: /root/.ollama/models/blobs/sha256-d8\n\ngoroutine 7 [running]:\n",
    ),
    # llama.cpp on Vulkan
    printed_oom("vulkan", "  what():  vk::Device::allocateMemory: ErrorOutOfDeviceMemory"),
    # bitsandbytes
    printed_oom(
        "bitsandbytes", "Error out of memory at line 351 in file /git/bitsandbytes/csrc/pythonInterface.c"
    ),
    # faster-whisper by CTranslate2
    raised_oom("faster-whisper", "RuntimeError: CUDA failed with error out of memory"),
    # Faiss
    raised_oom(
        "faiss",
        "RuntimeError: StandardGpuResourcesImpl::allocMemory: size 16 (cudaMalloc error out of memory [2])",
    ),
    # tiny-cuda-nn
    raised_oom(
        "tiny-cuda-nn",
        "RuntimeError: gpu_memory.h:590 cudaMalloc(&rawptr, n_bytes) failed with error out of memory",
    ),
    # CatBoost in Python
    raised_oom(
        "catboost",
        "_catboost.CatBoostError: memory_pool.h:303: Error: Out of memory. Requested 8880 MB; Free 5902 MB",
    ),
    # CatBoost
    printed_oom("catboost-program", "    type -> NCudaLib::TOutOfMemoryError", "Aborted (core dumped)\n"),
    # LightGBM
    raised_oom("lightgbm", "lightgbm.basic.LightGBMError: [CUDA] out of memory cuda_utils.hpp 37"),
    # OpenCV
    printed_oom(
        "opencv",
        "  what():  OpenCV gpu_mat.cu:116: error: (-217:Gpu API call) out of memory in function 'allocate'",
    ),
    # OpenCV 2
    printed_oom("opencv-2", "OpenCV Error: Gpu API call (out of memory) in CudaFuncTable::mallocPitch"),
    # CUDA.jl
    printed_oom("julia", "ERROR: LoadError: Out of GPU memory trying to allocate 8.000 GiB", "Stacktrace:\n"),
    # torchrun: one rank runs out of memory, the other fails after it, then the launcher's summary
    Case(
        "torchrun",
        with_process_mark("[rank1]: ", died(TORCH))
        + with_process_mark("[rank0]: ", died(NCCL_REMOTE))
        + "[rank0]:[E1026 03:51 ProcessGroupNCCL.cpp:616] Watchdog caught collective operation timeout\n"
        + "W1026 03:51:31.222000 25 api.py:908] Sending process 2521733 closing signal SIGTERM\n" * 60
        + CHILD_FAILED,
        TORCH,
    ),
    # torchrun: the lines of two ranks mixed, and everything the other rank prints
    Case(
        "torchrun-mixed",
        "".join(
            f"[rank1]: {one}\n[rank0]: {other}\n"
            for one, other in zip(died(TORCH).splitlines(), died(NCCL_REMOTE).splitlines(), strict=True)
        )
        + "[rank0]: what is more\n" * 60
        + "[rank0]:   what():  [PG ID 0 Rank 0] Process group watchdog thread terminated with exception\n"
        + CHILD_FAILED,
        TORCH,
    ),
    # torchrun: its summary names the rank that failed first, whatever the other prints later
    Case(
        "torchrun-cause",
        with_process_mark("[rank1]: ", died(TORCH)) + with_process_mark("[rank0]: ", MISTAKE) + CHILD_FAILED,
        TORCH,
    ),
    # torchrun: the rank that it names was the victim of the other rank
    Case(
        "torchrun-victim",
        with_process_mark("[rank0]: ", died(TORCH))
        + with_process_mark("[rank1]: ", died(NCCL_REMOTE))
        + CHILD_FAILED,
        TORCH,
    ),
    # torchrun without rank prefixes: errors of the other ranks from Gloo, a pipe and a socket
    Case(
        "ranks-without-marks",
        died(TORCH)
        + died("RuntimeError: [/gloo/transport/tcp/pair.cc:525] Connection closed by peer [10.0.0.7]:4013")
        + died("BrokenPipeError: [Errno 32] Broken pipe")
        + died("torch.distributed.DistNetworkError: failed to recv, got 0 bytes")
        + died("ConnectionResetError: [Errno 104] Connection reset by peer")
        + died("RuntimeError: Socket Timeout")
        + died("RuntimeError: store->get('0') got error: TCPStore is gone")
        + died("EOFError"),
        TORCH,
    ),
    # torchrun, terminated by a signal
    Case(
        "torchrun-told-to-end",
        with_process_mark("rank1: ", died(TORCH))
        + died("torch.distributed.elastic.agent.SignalException: Process 7 got signal: 15"),
        TORCH,
    ),
    # torchrun under Slurm
    Case(
        "srun",
        with_process_mark("[rank1]: ", died(TORCH))
        + "srun: error: node1: task 1: Exited with exit code 1\nsrun: error: node1: task 0: Terminated\n",
        TORCH,
    ),
    # Horovod under MPI
    Case(
        "horovod",
        with_process_mark("[1,1]<stderr>:", died(TORCH))
        + with_process_mark(
            "[1,0]<stderr>:", died("horovod.common.exceptions.HorovodInternalError: all-reduce failed")
        ),
        TORCH,
    ),
    # JAX on several hosts
    Case(
        "jax-hosts",
        died(XLA) + died("XlaRuntimeError: UNAVAILABLE: failed to connect to the coordination service"),
        XLA,
    ),
    # torch.multiprocessing.spawn
    Case(
        "spawn",
        died("torch.multiprocessing.spawn.ProcessRaisedException:")
        + f"\n-- Process 0 terminated with the following error:\n{died(TORCH)}",
        TORCH,
    ),
    # torch.multiprocessing.spawn before 1.8, and another process's end after it
    Case(
        "spawn-old",
        died(TORCH)
        + died("Exception:")
        + f"\n-- Process 3 terminated with the following error:\n{died(NCCL_REMOTE)}",
        TORCH,
    ),
    # torch.multiprocessing.spawn, a process that aborted
    Case(
        "spawn-aborted",
        ABORT
        + died(
            "torch.multiprocessing.spawn.ProcessExitedException: process 0 terminated with signal SIGABRT"
        ),
        ABORTED,
    ),
    # DeepSpeed's launcher
    raised_oom(
        "deepspeed",
        TORCH,
        "[2023-07-10 04:26:05,876] [INFO] [launch.py:318:sigkill_handler] Killing subprocess 7\n" * 64
        + "[2023-07-10] [ERROR] [launch.py:324:sigkill_handler] ['t.py'] exits with return code = 1\n",
    ),
    # accelerate's launcher
    Case("accelerate-launch", died(TORCH) + CALLED, TORCH),
    # a launcher of one's own
    Case("own-launcher", died(TORCH) + died("RuntimeError: train.py failed with return code 1"), TORCH),
    # Ray: the driver repeats the worker's error
    Case(
        "ray",
        died(
            f'ray.exceptions.RayTaskError(OutOfMemoryError): ray::f() (pid=7)\n  File "t.py", line 2\n{TORCH}'
        ),
        TORCH,
    ),
    # Ray: the actor is gone
    Case(
        "ray-actor",
        with_process_mark("(RayTrainWorker pid=118848, ip=10.0.0.7) ", died(TORCH))
        + died("ray.exceptions.RayActorError: The actor died unexpectedly before finishing this task."),
        TORCH,
    ),
    # Ray Tune
    Case(
        "ray-tune",
        died(TORCH) + died("ray.tune.error.TuneError: ('Trials did not complete', [train_0])"),
        TORCH,
    ),
    # concurrent.futures: its class has no Error in its name
    Case(
        "process-pool",
        ABORT + died("concurrent.futures.process.BrokenProcessPool: A process was terminated abruptly"),
        ABORTED,
    ),
    # joblib
    Case(
        "joblib",
        ABORT + died("joblib.externals.loky.process_executor.TerminatedWorkerError: A worker stopped"),
        ABORTED,
    ),
    # DataLoader, a worker that uses the GPU
    Case(
        "dataloader",
        ABORT + died("RuntimeError: DataLoader worker (pid(s) 12345) exited unexpectedly"),
        ABORTED,
    ),
    # Python, an error raised while the first one was handled
    Case(
        "during",
        died(TORCH) + DURING + died("AttributeError: 'NoneType' object has no attribute 'cpu'"),
        TORCH,
    ),
    # Python, an error made of it, whose class has no Error in its name, and another of that
    Case(
        "direct",
        died(TORCH) + DIRECT + died("TrainFailed: step 3") + DIRECT + died("KeyError: 'loss'"),
        TORCH,
    ),
    # Python, what it prints while it ends
    Case(
        "at-exit",
        died(TORCH)
        + f"Exception ignored in: <function Pool.__del__ at 0x7f>\n{died('TypeError: not callable')}"
        + died("OSError: [Errno 16] Device or resource busy: '/tmp/pymp-x1/.nfs000'"),
        TORCH,
    ),
    # Weights & Biases, its summary
    raised_oom("wandb", TORCH, "wandb: Run history:\n" * 60),
    # conda
    raised_oom(
        "conda-run", TORCH, "ERROR conda.cli.main_run:execute(124): `conda run python t.py` failed.\n"
    ),
)

NEAR_MISSES = (
    # Linux
    no_oom("killed", PROGRESS, "Killed\n"),
    no_oom("killed-by-kernel", "[123.4] Out of memory: Killed process 4013 (python) total-vm:9000kB\n"),
    no_oom("oom-kill", "[123.4] oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null)\n"),
    no_oom("disk", died("OSError: [Errno 28] No space left on device")),
    # Slurm
    no_oom("slurm", "slurmstepd: error: Detected 1 oom_kill event in StepId=7.0.\n"),
    no_oom("srun-out-of-memory", "srun: error: node1: task 0: Out Of Memory\n"),
    # C++
    no_oom("bad-alloc", "terminate called after throwing\n  what():  std::bad_alloc\n"),
    # Python, NumPy
    no_oom("memory-error", died("MemoryError")),
    no_oom(
        "numpy", died("numpy.core._exceptions._ArrayMemoryError: Unable to allocate 7.45 GiB for an array")
    ),
    no_oom("errno-12", died("OSError: [Errno 12] Cannot allocate memory")),
    # Java
    no_oom("java", 'Exception in thread "main" java.lang.OutOfMemoryError: Java heap space\n'),
    # PyTorch on the host
    no_oom(
        "torch-host",
        died(
            "RuntimeError: [enforce fail at alloc_cpu.cpp:114] err == 0. DefaultCPUAllocator: can't allocate"
            " memory: you tried to allocate 1 bytes. Error code 12 (Cannot allocate memory)"
        ),
    ),
    no_oom(
        "torch-host-windows",
        died("RuntimeError: DefaultCPUAllocator: not enough memory: you tried to allocate 1"),
    ),
    no_oom(
        "torch-shared-memory",
        died("RuntimeError: DataLoader worker is killed by signal: out of shared memory."),
    ),
    # TensorFlow on the host
    no_oom("tensorflow-host", died(f"{TF_ERRORS}.ResourceExhaustedError: {TF_CPU}")),
    no_oom(
        "tensorflow-pinned",
        "E tensorflow/stream_executor/cuda/cuda_driver.cc:893] failed to alloc 4294967296 bytes on host:"
        " CUDA_ERROR_OUT_OF_MEMORY: out of memory\n",
    ),
    # JAX on the host
    no_oom(
        "jax-host", died("XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory allocating 20029400304 bytes.")
    ),
    # Ray on the host
    no_oom(
        "ray-host",
        died("ray.exceptions.OutOfMemoryError: Task was killed due to the node running low on memory."),
    ),
    # MXNet on the host
    no_oom(
        "mxnet-host", died("mxnet.base.MXNetError: cpu_device_storage.h:72: Failed to allocate CPU Memory")
    ),
    # ONNX Runtime on the host: a node that only its CPU provider has
    no_oom("onnxruntime-host", f"Status Message while running Conv node. Name:'347_nchwc': {ORT}\n"),
    # ggml, pinned host memory, which it replaces by other memory
    no_oom(
        "ggml-pinned",
        "ggml_cuda_host_malloc: CUDA error: failed to allocate 9 MiB of pinned memory: out of memory\n",
    ),
    # CUDA, the host's pinned memory
    no_oom("malloc-host", "cudaMallocHost failed: out of memory\n"),
    # NCCL on the host
    no_oom("nccl-host", "Failed to CUDA host alloc 4096 bytes\n"),
    # OpenCV on the host
    no_oom(
        "opencv-host",
        "cuda_host_mem.cpp:95: error: (-217:Gpu API call) out of memory in function 'allocate'\n",
    ),
    # Triton, the language: the shared memory of a multiprocessor
    no_oom(
        "triton-shared",
        died(
            "triton.runtime.errors.OutOfResources: out of resource: shared memory, Required: 131072, Hardware"
            " limit: 101376. Reducing block sizes or `num_stages` may help."
        ),
    ),
    # Triton Inference Server, which falls back to host memory
    no_oom(
        "triton-falls-back",
        "W0410 13:51:44.743979 1 memory.cc:212] Failed to allocate CUDA memory with byte size 102236160 on"
        " GPU 0: CNMEM_STATUS_OUT_OF_MEMORY, falling back to pinned system memory\n",
    ),
    # CUDA, other errors
    no_oom("illegal-access", died("RuntimeError: CUDA error: an illegal memory access was encountered")),
    no_oom("device-assert", died("RuntimeError: CUDA error: device-side assert triggered")),
    no_oom(
        "cublas-other",
        died("RuntimeError: CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate`"),
    ),
    no_oom("cudnn-other", died("RuntimeError: cuDNN error: CUDNN_STATUS_INTERNAL_ERROR")),
    no_oom("nccl-other", died(NCCL_REMOTE)),
    no_oom(
        "allocator-other",
        died(
            'RuntimeError: !block->mapped INTERNAL ASSERT FAILED at "../c10/cuda/CUDACachingAllocator.cpp":2'
        ),
    ),
    # Google Cloud, gRPC: a quota, a limit
    no_oom(
        "quota",
        died("google.api_core.exceptions.ResourceExhausted: 429 Resource has been exhausted (check quota)."),
    ),
    no_oom(
        "grpc",
        died("grpc._channel._InactiveRpcError: <StatusCode.RESOURCE_EXHAUSTED Received message too large>"),
    ),
    # vLLM, a length that does not fit: see the docstring of core.oom
    no_oom(
        "vllm-length",
        died(
            "ValueError: The model's max seq len (32768) is larger than the maximum number of tokens that can"
            " be stored in KV cache (7344). Try increasing `gpu_memory_utilization` or decreasing it."
        ),
    ),
    no_oom(
        "vllm-length-v1",
        died(
            "ValueError: To serve at least one request with the models's max seq len (131072), (16 GiB KV"
            " cache is needed, which is larger than the available KV cache memory (13.50 GiB)."
        ),
    ),
    # SGLang, slots: counted, not measured
    no_oom(
        "sglang-slots", died("RuntimeError: alloc_req_slots runs out of memory. Please set a smaller number")
    ),
    # names that contain the words
    no_oom("names", "GET https://example.org/oom/cuda-out-of-memory.html 404\nreading /classroom/zoom.csv\n"),
    no_oom("no-such-file", died("FileNotFoundError: [Errno 2] No such file: 'cuda_oom/out of memory.txt'")),
    # progress, advice
    no_oom("progress-line", "loss 0.1 | CUDA out of memory events: 0 | 12 out of memory banks used\n"),
    no_oom("advice", "note: if you see RuntimeError: CUDA out of memory, set a smaller --batch\n"),
    # a batch-size finder, then a mistake of the program
    no_oom(
        "caught-then-mistake",
        f"{OLD_TORCH}\nCUDA out of memory, reducing batch size to 8\nepoch 1\n",
        MISTAKE,
    ),
    no_oom("caught-silently-then-mistake", died(TORCH), "epoch 1\n", MISTAKE),
    # the same, reported by a launcher
    no_oom("caught-then-launcher", died(TORCH), "epoch 1\n", MISTAKE, CALLED),
    no_oom(
        "caught-then-torchrun",
        with_process_mark("[rank1]: ", MISTAKE),
        with_process_mark("[rank0]: ", died(TORCH)),
        CHILD_FAILED,
    ),
    # the same, then host memory
    no_oom("caught-then-killed", died(TORCH), "epoch 1\nKilled\n"),
    no_oom(
        "caught-then-killed-by-bash",
        died(TORCH),
        "./run.sh: line 3: 4013 Killed                  python t.py\n",
    ),
    no_oom("caught-then-bad-alloc", f"{GGML}\n  what():  std::bad_alloc\n"),
    no_oom("caught-then-kernel", died(TORCH), "[123.4] Out of memory: Killed process 4013 (python)\n"),
    no_oom("caught-then-oom-kill", died(TORCH), "slurmstepd: Detected 1 oom-kill event\n"),
    no_oom(
        "caught-then-worker",
        died(TORCH),
        died("RuntimeError: DataLoader worker (pid 4) is killed by signal: Killed."),
    ),
    # the same, then the last lines of other programs
    no_oom("caught-then-usage", died(TORCH), "eval.py: error: unrecognized arguments: --bacth\n"),
    no_oom("caught-then-panic", died(TORCH), "panic: index out of range\n"),
    # an error whose class has no Error in its name
    no_oom("caught-then-odd-class", died(TORCH), "epoch 1\n", died("__main__.Diverged: loss is nan")),
    # an unrelated chain of errors
    no_oom(
        "caught-then-chain", died(TORCH), "epoch 1\n", died("KeyError: 'a'"), DURING, died("ValueError: none")
    ),
    # a batch-size finder that goes on; the log does not show how the program ended
    no_oom("caught-same-line", f"{OLD_TORCH}; retrying with batch size 8\nepoch 1\n"),
    no_oom("caught-next-line", died(TORCH), "OOM: reducing batch size to 8\nepoch 1\n"),
    no_oom("caught-halved", died(TORCH), "batch size was halved to 8\nepoch 1\n"),
    # accelerate, Lightning
    no_oom("accelerate-goes-on", died(TORCH), "Decreasing batch size to: 8.\nepoch 1\n"),
    no_oom("lightning-goes-on", died(TORCH), "Batch size 64 failed, trying batch size 48\n"),
    # fairseq
    no_oom("fairseq", f"| WARNING: ran out of memory with exception: {OLD_TORCH};\n Skipping batch\n"),
    no_oom(
        "fairseq-later", f"OOM: Ran out of memory: {OLD_TORCH}\n| WARNING | attempting to recover from OOM\n"
    ),
    # any program that went on for a long time
    no_oom("long-ago", died(TORCH), PROGRESS),
    no_oom("long-ago-printed", f"{GGML}\n{PROGRESS}"),
    no_oom("long-ago-then-launcher", died(TORCH), PROGRESS, CALLED),
    no_oom("rank-went-on", with_process_mark("[default0]:", died(TORCH) + PROGRESS)),
    # TensorFlow, warnings
    no_oom("tensorflow-no-failure", f"{TF_LOG}. The caller indicates that this is not a failure\n"),
    no_oom("tensorflow-goes-on", f"{TF_LOG}\n", "Epoch 1/5\n1/1 - loss: 0.1\n" * 3),
    # Python, a warning
    no_oom("warning-goes-on", f"/x/t.py:3: UserWarning: {OLD_TORCH}\n", "epoch\n" * 6),
    # source code in the traceback of another error
    no_oom(
        "source-text",
        'Traceback (most recent call last):\n  File "/x/t.py", line 3, in <module>\n'
        '    raise RuntimeError("CUDA error: out of memory")\n',
    ),
    # Python, an error before a later C++ error
    no_oom("caught-then-exception", died(TORCH), died("NoDataException: empty"), ENGINE),
    no_oom("caught-then-abort", died(TORCH), "  what():  std::bad_alloc\n"),
    # nothing
    no_oom("empty"),
)


@pytest.mark.parametrize("case", OOMS + NEAR_MISSES, ids=lambda case: case.name)
def test_finds_the_oom_line_that_ended_a_job(case: Case) -> None:
    assert cuda_oom(case.tail) == case.expected


def test_case_names_are_unique() -> None:
    assert len({case.name for case in OOMS + NEAR_MISSES}) == len(OOMS + NEAR_MISSES)


@pytest.mark.parametrize("case", OOMS, ids=lambda case: case.name)
def test_rejects_an_oom_after_which_the_program_went_on(case: Case) -> None:
    assert cuda_oom(f"{case.tail}epoch 1\n{MISTAKE}") is None
    assert cuda_oom(f"{case.tail}{PROGRESS}") is None


@pytest.mark.parametrize("case", OOMS, ids=lambda case: case.name)
def test_ignores_the_last_line_of_the_runner(case: Case) -> None:
    assert cuda_oom(f"{case.tail}\n--- exit code 1 after 12 s ---\n") == case.expected


@pytest.mark.parametrize(
    "line",
    [
        # PyTorch, ROCm
        "torch.cuda.OutOfMemoryError: more than there is",
        "RuntimeError: HIP out of memory",
        "__main__.TrainException: CUDA out of memory at step 3",
        "error at step 3: HIP out of memory. Tried to allocate 1.50 GiB",
        "sampler: CUDA out of memory occurred when warming up",
        # ggml on ROCm, HIP
        "ROCm error: out of memory",
        "HIP error: out of memory",
        "hipMalloc failed: out of memory",
        # libraries
        "HIPBLAS_STATUS_ALLOC_FAILED",
        "CUSPARSE_STATUS_ALLOC_FAILED",
        "CUTENSOR_STATUS_ALLOC_FAILED",
        "HIPFFT_ALLOC_FAILED",
        "CUDNN_STATUS_EXECUTION_FAILED: out of memory",
        # Chainer on CuPy
        "Exception in main training loop: Out of memory allocating 25,600 bytes (allocated so far: 9).",
        # RMM
        "MemoryError: std::bad_alloc: out_of_memory",
        # Triton Inference Server, Text Generation Inference
        "failed to allocate CUDA memory",
        "Not enough memory to handle 16000 total tokens with 2 prefill tokens.",
    ],
)
def test_recognizes_other_wordings(line: str) -> None:
    assert cuda_oom(f"starting\n{line}\n") == line


#: Messages of programs that catch the error before they exit with an error.
CAUGHT = (
    "CUDA out of memory",
    "CUDA out of memory!",
    "CUDA out of memory.",
    "Error: CUDA out of memory",
    "ERROR:root:CUDA out of memory",
    "2025-01-01 10:00:00,123 - ERROR - CUDA out of memory, try a smaller batch",
    "[ERROR] CUDA out of memory",
    "OutOfMemoryError",
    "torch.OutOfMemoryError",
    "caught torch.cuda.OutOfMemoryError, exiting",
    "Caught OutOfMemoryError",
    "<class 'torch.OutOfMemoryError'>",
    "training failed: OutOfMemoryError",
    "OutOfMemoryError: CUDA out of memory",
    "OutOfMemoryError('CUDA out of memory. Tried to allocate 2 GiB')",
    "Out of memory: OutOfMemoryError()",
    "❌ CUDA out of memory",
    "** CUDA out of memory **",
    "Training stopped: CUDA out of memory (batch 64)",
    "GPU 0: CUDA out of memory",
    "epoch 3 failed with CUDA out of memory",
    "Exiting because of CUDA out of memory",
    "hit OutOfMemoryError at step 3",
    "fatal: CUDA out of memory at step 12",
    "RuntimeError caught: CUDA out of memory",
    "error_type: OutOfMemoryError",
    '{"level": "error", "message": "CUDA out of memory"}',
    "Cuda out of memory",
    "CUDA OUT OF MEMORY ERROR!",
    "CUDA out of memory error encountered.",
    "CUDA Out of Memory error. Try using a GPU with more VRAM.",
    "CUDA out of memory: stop other GPU jobs or use --device cpu",
    "CUDA out of memory during model loading. Try reducing batch size.",
    "CUDA out of memory. Try reducing --batch_size or --img_size.",
    "HIP out of memory",
)
#: Lines with these words that report nothing: settings, help, statistics, source, other runs, host memory.
MENTIONS = (
    "catch_OutOfMemoryError=True",
    "catch_oom: OutOfMemoryError",
    "retry_on: OutOfMemoryError",
    "retry_on: torch.cuda.OutOfMemoryError",
    "retry on torch.OutOfMemoryError: 3 times",
    "oom_exception=torch.OutOfMemoryError",
    "oom_exception: torch.OutOfMemoryError",
    "Config(retry_on=<class 'torch.OutOfMemoryError'>)",
    "except_types: [<class 'torch.OutOfMemoryError'>]",
    "retry exceptions: (OutOfMemoryError, TimeoutError)",
    "  - OutOfMemoryError",
    "  - torch.cuda.OutOfMemoryError",
    "- CUDA out of memory",
    "except torch.cuda.OutOfMemoryError:",
    "except OutOfMemoryError:",
    "except torch.OutOfMemoryError as error:",
    "raise OutOfMemoryError",
    "import OutOfMemoryError",
    "from torch.cuda import OutOfMemoryError",
    "handling CUDA out of memory errors by halving the batch",
    "CUDA out of memory handler installed",
    "CUDA out of memory handling: on",
    "OutOfMemoryError handler registered",
    "OutOfMemoryError handling enabled",
    "CUDA out of memory: 0",
    "CUDA out of memory: 0 events",
    "CUDA out of memory events: 0",
    "CUDA out of memory count: 3",
    "CUDA out of memory: skip",
    "on CUDA out of memory: skip the batch",
    "on_oom: CUDA out of memory",
    "hint: CUDA out of memory, use --small",
    "Note: CUDA out of memory means that the batch is too large",
    "tip: to avoid CUDA out of memory, lower --batch",
    "To avoid CUDA out of memory: use --small",
    "If it dies: CUDA out of memory, use --small",
    "When this happens: CUDA out of memory, lower it",
    "recovered from CUDA out of memory",
    "Recovered: CUDA out of memory at step 3",
    "CUDA out of memory at step 3, recovered",
    "CUDA out of memory at step 3, continuing with the next batch",
    "CUDA out of memory, ignoring batch 3",
    "CUDA out of memory caught and handled",
    "CUDA out of memory may occur with long sequences",
    "CUDA out of memory errors are retried",
    "no CUDA out of memory so far",
    "without CUDA out of memory",
    "survived CUDA out of memory",
    "avoid CUDA out of memory",
    "known issues: CUDA out of memory on 8 GiB cards",
    "FAQ: CUDA out of memory",
    'see "CUDA out of memory" in the FAQ',
    'patterns: "CUDA out of memory"',
    'oom_patterns = ["CUDA out of memory", "OutOfMemoryError"]',
    'markers: ["CUDA out of memory", "OutOfMemoryError"]',
    "reading /data/cuda out of memory.txt",
    "docs/CUDA out of memory.md",
    "java.lang.OutOfMemoryError: Java heap space",
    "OutOfMemoryError: Java heap space",
    "OutOfMemoryError: GC overhead limit exceeded",
    "ray.exceptions.OutOfMemoryError: Task was killed due to the node running low on memory",
    "duckdb.OutOfMemoryError",
    "test_OutOfMemoryError passed",
    "MyOutOfMemoryErrorHandler",
    "OutOfMemoryErrorPolicy: retry",
    "class OutOfMemoryError(RuntimeError):",
    "simulated: CUDA out of memory",
    "simulating CUDA out of memory",
    "expected CUDA out of memory",
    "expected error: CUDA out of memory, got nothing",
    "export MSG='CUDA out of memory'",
    'echo "CUDA out of memory"',
    'grep -q "CUDA out of memory" log.txt',
    "+ grep 'CUDA out of memory' log.txt",
    'if "CUDA out of memory" in str(e):',
    '        if "out of memory" in str(error) or "CUDA out of memory" in text:',
    'raise RuntimeError("CUDA out of memory")',
    'logger.error("CUDA out of memory")',
    "tests/test_oom.py::test_CUDA out of memory PASSED",
    "| CUDA out of memory | lower the batch |",
    "| error | CUDA out of memory | lower the batch |",
    "OOM policy: CUDA out of memory during eval skips the batch",
    "CUDA out of memory? Try a smaller batch",
    "retries after CUDA out of memory: 3 of 5",
    "--on-oom TEXT  what to do on CUDA out of memory (default: fail)",
    "  --retry  retry on OutOfMemoryError",
    "usage: t.py [--retry-on OutOfMemoryError]",
    "metrics: oom=0 (CUDA out of memory)",
    "loss=0.3 oom_errors=0 OutOfMemoryError=0",
    "CPU OutOfMemoryError",
    "DefaultCPUAllocator OutOfMemoryError",
    "0 CUDA out of memory errors",
    "3x CUDA out of memory",
    "previous run: CUDA out of memory",
    "resuming after CUDA out of memory",
    "last attempt failed with CUDA out of memory, this one uses batch 8",
    "loaded checkpoint of a run that died with CUDA out of memory",
    "CUDA out of memory protection: enabled",
)


@pytest.mark.parametrize("line", CAUGHT)
def test_recognizes_the_message_of_a_program_that_caught_the_error(line: str) -> None:
    expected = line.strip()
    assert cuda_oom(f"epoch 1\n{line}\n") == expected
    assert cuda_oom(f"{PROGRESS}{line}\nexiting\nwandb: Run history:\n") == expected
    assert cuda_oom(with_process_mark("[rank1]: ", f"{line}\n")) == expected


@pytest.mark.parametrize("line", CAUGHT)
def test_own_messages_count_only_among_the_last_lines(line: str) -> None:
    assert cuda_oom(f"{line}\n" + "epoch\n" * 5) == line
    of_library = any(pattern.search(line) for pattern in ROWS)
    assert cuda_oom(f"{line}\n" + "epoch\n" * 6) == (line if of_library else None)
    assert cuda_oom(f"{line}\n{MISTAKE}") is None
    assert cuda_oom(f"{line}\nretrying with batch size 8, as memory is short\nepoch 2\n") is None
    assert cuda_oom(f"{line}\nKilled\n") is None


@pytest.mark.parametrize("line", MENTIONS)
def test_rejects_a_line_that_only_mentions_the_error(line: str) -> None:
    assert cuda_oom(f"epoch 1\n{line}\n") is None
    assert cuda_oom(f"{line}\nepoch 1\n") is None


@pytest.mark.parametrize(
    "line",
    [
        "OOM: retrying",
        "out of memory, will retry",
        "memory is short, so lowering the batch",
        "memory is short and halving the batch",
        "batch failed; now trying with 4",
        "OOM, then trying again",
        "CUDA OOM (retrying)",
        "OOM! Skipped",
        "batch 3 | skipping",
        "OOM - trying a smaller one",
        "out of memory. Falling back to the CPU",
        "reducing the batch",
        "  Decreasing the batch",
        "batch size reduced to 4",
        "batch was lowered to 4",
    ],
)
def test_rejects_an_oom_that_the_program_recovered_from(line: str) -> None:
    assert cuda_oom(f"{died(TORCH)}{line}\n") is None


@pytest.mark.parametrize(
    "line",
    [
        "Please try lowering the batch size.",
        "You can avoid this by reducing memory.",
        "Reduce the batch.",
        "Retrying",
    ],
)
def test_advice_after_the_error_is_not_a_recovery(line: str) -> None:
    assert cuda_oom(f"{died(TORCH)}{line}\n") == TORCH


@pytest.mark.parametrize("advice", ["if you see", "when you get", "in case there is a", "If there is a"])
def test_rejects_advice_about_a_possible_error(advice: str) -> None:
    assert cuda_oom(f"{advice} CUDA error: out of memory, use --small\n") is None


@pytest.mark.parametrize(
    "line",
    [
        TF_LOG,
        "2025-01-01: W external/xla/bfc_allocator.cc:512] Allocator (GPU_0_bfc) ran out of memory",
        "W0325 12:00:00.000 123 bfc_allocator.cc:512] Allocator (GPU_0_bfc) ran out of memory",
        "node1:392:494 [2] NCCL WARN Cuda failure 'out of memory'",
        f"WARNING:root:{OLD_TORCH}",
        f"/x/t.py:3: UserWarning: {OLD_TORCH}",
    ],
)
def test_a_warning_counts_only_at_the_end(line: str) -> None:
    assert cuda_oom(f"{line}\n" + "epoch\n" * 5) == line
    assert cuda_oom(f"{line}\n" + "epoch\n" * 6) is None


def test_an_error_counts_only_near_the_end() -> None:
    assert cuda_oom(died(TORCH) + "epoch\n" * 40) == TORCH
    assert cuda_oom(died(TORCH) + "epoch\n" * 41) is None


@pytest.mark.parametrize(
    "line",
    [
        "",
        "    indented",
        "frame #3: c10::Error::Error()",
        "#0  0x00007f in wait4 ()",
        "[New LWP 2445]",
        "[bt] (0) /env/lib/x.so",
        "----------",
        "wandb: Run history:",
        "W1026 03:51:31.222000 25 api.py:908] Sending process 2521733 closing signal SIGTERM",
        "2025-01-01 10:00:00: I external/xla/bfc_allocator.cc:1101] Chunk",
        "node1:392:494 [2] NCCL INFO misc/argcheck.cc",
        "[INFO] [launch.py:318:sigkill_handler] Killing subprocess 7",
    ],
)
def test_ignores_stacks_and_summaries_after_the_error(line: str) -> None:
    assert cuda_oom(died(TORCH) + f"{line}\n" * 100) == TORCH


@pytest.mark.parametrize(
    "error",
    [
        "RuntimeError: Engine process failed to start. See stack trace for the root cause.",
        "vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue.",
        "ray.exceptions.ActorDiedError: The actor is gone",
        "ray.train.base_trainer.TrainingFailedError: The Ray Train run failed.",
        "RuntimeError: Caught RuntimeError in DataLoader worker process 0.",
        "RuntimeError: 1 of 4 processes exited with nonzero status",
        "RuntimeError: Command exited with exit status 1",
        "main: error: unable to load model",
        "ValueError: Could not load Llama model from path: m.gguf",
        "torch.distributed.DistStoreError: timed out",
        "RuntimeError: the process group was destroyed",
        "ConnectionRefusedError: [Errno 111] Connection refused",
        "RuntimeError: Connection closed by peer",
    ],
)
def test_skips_an_error_that_only_reports_another(error: str) -> None:
    assert cuda_oom(f"{GGML}\n{died(error)}") == GGML


@pytest.mark.parametrize(
    "intro",
    [
        "Exception ignored in: <x>",
        "Error in atexit._run_exitfuncs:",
        "--- Logging error ---",
        "Exception in thread T1:",
    ],
)
def test_skips_an_error_that_does_not_end_python(intro: str) -> None:
    assert cuda_oom(f"{died(TORCH)}{intro}\n{died('ValueError: I/O operation on closed file.')}") == TORCH


@pytest.mark.parametrize(
    "mark",
    [
        "[rank3]: ",
        "[default3]:",
        "rank3: ",
        "[1,3]<stderr>:",
        "[1,3]<stdout>:",
        "stderr: ",
        "(train pid=7) ",
        "(pid=7, ip=10.0.0.7) ",
        "(VllmWorker rank=3 pid=7) ERROR 05-10 16:00:15 [multiproc_executor.py:470] ",
        "CRITICAL 05-10 16:00:15 core.py:470] ",
        "WARNING 05-10 16:00:15 [core.py:470] ",
        "INFO 05-10 16:00:15 [core.py:470] ",
        "    | ",
    ],
)
def test_strips_the_process_prefix_from_the_line(mark: str) -> None:
    assert cuda_oom(with_process_mark(mark, died(TORCH))) == TORCH
    assert cuda_oom(with_process_mark(mark, died(TORCH) + MISTAKE)) is None


@pytest.mark.parametrize("row", SIGNATURES, ids=lambda row: row.name)
def test_each_signature_is_needed_for_its_example(row: Signature) -> None:
    assert [other.name for other in SIGNATURES if other.pattern.search(row.example)] == [row.name]
    assert cuda_oom(row.example) == row.example


@pytest.mark.parametrize("word", KEYWORDS)
def test_each_keyword_is_needed(word: str) -> None:
    lines = [case.expected.lower() for case in OOMS if case.expected] + [
        row.example.lower() for row in SIGNATURES
    ]
    assert any([other for other in KEYWORDS if other in line] == [word] for line in lines)


#: Pieces of logs without a keyword, also when joined.
PIECES = (
    *(
        "CUDA",
        "error:",
        "RuntimeError: ",
        "out",
        "of",
        "RAM",
        "GPU:0",
        "\n",
        "\r",
        "\x1b[31m",
        "[rank0]: ",
        "é",
    ),
    *(
        "Traceback (most recent call last):\n",
        '  File "x.py", line 1\n',
        "ChildFailedError:",
        "  | ",
        "Killed",
    ),
    *(DURING, "Exception ignored in: ", "  what():  ", "(pid=7) "),
)


@given(st.one_of(st.text(max_size=300), st.lists(st.sampled_from(PIECES), max_size=40).map(" ".join)))
def test_text_without_keywords_never_matches(text: str) -> None:
    if not any(word in text.lower() for word in KEYWORDS):
        assert cuda_oom(text) is None


@given(st.lists(st.sampled_from((*PIECES, *(f"{row.example}\n" for row in SIGNATURES))), max_size=30))
def test_returns_one_line_or_none_for_any_log(pieces: list[str]) -> None:
    told = cuda_oom(" ".join(pieces))
    assert told is None or (
        "\n" not in told and any(pattern.search(told) for pattern in (*ROWS, PRINTED_ERROR))
    )


@pytest.mark.parametrize(
    "piece", ["epoch 1: loss 0.123\n", "CUDA error: ", "a.", "a\n", "\x1b[32m1\x1b[0m\n", "1%|#\r", "é", " "]
)
def test_a_full_tail_without_keywords_costs_a_few_ms(piece: str) -> None:
    tail = (piece * 65536)[:65536]
    assert cuda_oom(tail) is None
    assert seconds(tail) < 0.02  # it takes 1 to 3 ms; the rest is for slow machines


@pytest.mark.parametrize(
    "piece",
    [
        "CUDA error out of ",
        "cudaMalloc( out of memory",
        "OOM when allocating tensor / ",
        "NVML_SUCCESS == ",
        "CUDA out of memory ",
        "OutOfMemoryError: ",
        "if a.",
        "a.",
        " ",
    ],
)
def test_no_text_makes_the_patterns_slow(piece: str) -> None:
    assert seconds((piece * 65536)[:65500] + " CUDACachingAllocator") < 1
    assert seconds(f"{GGML}\n" + (f"{piece}\n" * 65536)[:65000]) < 1


def seconds(tail: str) -> float:
    """Returns the processor seconds of the fastest of several runs."""
    spent = []
    for _ in range(3):
        begun = time.process_time()
        cuda_oom(tail)
        spent.append(time.process_time() - begun)
    return min(spent)
