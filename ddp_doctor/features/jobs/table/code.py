"""Causes in the job's own code or data: exceptions, devices, files that cannot be read."""

from ddp_doctor.features.jobs.table.gpu_access import SET_DEVICE
from ddp_doctor.features.jobs.table.kinds import JobCause, code_cause
from ddp_doctor.features.jobs.table.remedies import in_code, on_node, remedy, setting
from ddp_doctor.features.jobs.table.signs import (
    CONFIGURATION_INVALID,
    FILE_NOT_ACCESSIBLE,
    LIBRARY_EXCEPTION,
    Sign,
    hint,
    nccl,
    proof,
)

#: Messages of libraries about files that they cannot decode.
_NOT_DECODED = (
    "cannot identify image file", "image file is truncated", "Truncated File Read", "EOFError: Ran out of input",
    "PytorchStreamReader failed", "The file might be corrupted", "BadZipFile", "tarfile.ReadError", "zlib.error: Error",
    "JSONDecodeError: ", "UnpicklingError: ", "SafetensorError: ", "lib.ArrowInvalid",
    "Unable to open file (truncated file", "invalid load key",
)  # fmt: skip
CAUSES = {
    "DDJ160": code_cause(
        name="rank-exception",
        title="{who} stopped[ in {where}]: {type}[: {message}]",
        finds="A rank ended with a Python exception that does not concern another rank and that no other cause"
        " explains.",
        why="The other ranks wait for the rank that stopped, and fail later with timeouts and closed connections.",
        remedies=(in_code("Read the traceback in the evidence; later tracebacks of other ranks may be consequences"),),
        next_check="run the named line on one process with the same batch",
        references=("torch 2.15 distributed/elastic/multiprocessing/errors",),
        # Evaluated from the sign "exception" (pointers.py): causes/evidence.py.
    ),
    # Also evaluated from exceptions: causes/exceptions.py.
    "DDJ227": JobCause(
        name=FILE_NOT_ACCESSIBLE,
        title="{who} cannot open a file[: {message}][ ({where})]",
        restart="no",
        finds="A rank ended because a file, directory or program does not exist, or because the user may not use it.",
        why="A path in the arguments or the configuration is wrong, or the file is on one node only. With a relative"
        " path, it also depends on the directory in which the launcher starts.",
        remedies=(
            remedy(
                "Create, download or correct the path, and check it on every node",
                "srun --ntasks-per-node=1 ls -ld FILE",
            ),
            remedy("If permission is denied, use a path that the job's user may read and write"),
            in_code("If another rank creates or deletes the file, wait for that rank: torch.distributed.barrier()"),
        ),
        next_check="ls -ld FILE on the rank's host, and in its container",
        references=("errno(3): ENOENT, EACCES, ENOTDIR, EISDIR, EROFS",),
    ),
    "DDJ228": JobCause(
        name=CONFIGURATION_INVALID,
        title="{who} cannot read the configuration[: {message}][ ({where})]",
        restart="no",
        finds="A rank ended while it parsed a configuration file, such as the JSON of DeepSpeed or a YAML file.",
        why="The file is empty, has a syntax error, or is another file than intended. All ranks read the same file.",
        remedies=(
            remedy(
                "Correct the file of --deepspeed, --config or the like at the line in the message",
                "python -m json.tool FILE",
                "python -c \"import yaml; yaml.safe_load(open('FILE'))\"",
            ),
        ),
        next_check="python -m json.tool FILE, with the file that the traceback loads",
        references=("Python: json; PyYAML; OmegaConf; transformers integrations/deepspeed.py",),
    ),
    "DDJ229": JobCause(
        name="credentials-missing",
        title="{who} has no valid credentials[: {reason}]",
        restart="no",
        finds="A service such as Weights & Biases or Hugging Face rejects the key or token of the job, or finds none.",
        why="Ranks have no terminal to ask for a key, and batch jobs and containers often do not get the variables or"
        " the home directory with the login.",
        remedies=(
            remedy(
                "For Weights & Biases: set WANDB_API_KEY to the key of your account, or log without a connection",
                settings=(setting("WANDB_MODE", "offline"),),
            ),
            remedy("For Hugging Face: request access to the model, and pass a token", "export HF_TOKEN=hf_..."),
            remedy("Pass the variable to all ranks of all nodes", "srun --export=ALL python train.py"),
        ),
        next_check="env | grep -E 'WANDB|HF_TOKEN|AWS' in a rank",
        references=("wandb sdk/lib/apikey.py; huggingface_hub errors.py; botocore exceptions.py",),
        signs={
            "credentials-refused": Sign(
                (
                    *("API key must be ", "Error: api_key not configured", "GatedRepoError: ", "access a gated repo"),
                    *("Invalid user token", "Unable to locate credentials"),
                ),
                r"(?P<reason>API key must be [^\n]{1,80}|api_key not configured[^\n.]{0,40}"
                r"|GatedRepoError: [^\n.]{1,40}|(?:You are trying to )?access a gated repo|Invalid user token"
                r"|Unable to locate credentials)",
            ),
            "key-not-configured": hint("wandb: ERROR api_key", r"(?P<reason>api_key not configured[^\n.]{0,40})"),
        },
    ),
    "DDJ100": JobCause(
        name=LIBRARY_EXCEPTION,
        title="{who} stopped[ in {where}]: {type}[: {message}]",
        finds="A rank ended with an exception from a driver, NCCL or another communication library that no other cause"
        " explains.",
        why="The job's line only made the call. The fault may be in the library, its release, the driver, a GPU or the"
        " network. A run with one process does not reproduce it.",
        remedies=(remedy("Compare the versions of that library, of torch and of the driver with those it supports"),),
        next_check="ddp-doctor run on the same nodes",
        references=("torch 2.15 distributed/elastic/multiprocessing/errors",),
    ),
    "DDJ161": code_cause(
        name="gpu-out-of-memory",
        title="GPU[ {gpu}] of {who} is out of memory[: {size} requested]",
        finds="An allocation on a GPU failed because its memory is used up.",
        why="Activations, gradients, optimizer states and other processes on the GPU all use memory. A rank with a"
        " longer batch stops, and the others wait for it.",
        remedies=(
            in_code(
                "Use a smaller batch per GPU, activation checkpointing, bfloat16, or shard the model (fully_shard)"
            ),
            remedy(
                "Use expandable segments if much memory is reserved but not allocated",
                settings=(setting("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True"),),
                undo="unset PYTORCH_CUDA_ALLOC_CONF",
            ),
            on_node("End other processes that use memory on the GPU", "nvidia-smi"),
        ),
        next_check="nvidia-smi --query-compute-apps=pid,used_memory --format=csv on the host, before the job starts",
        references=("torch 2.4 to 2.15, c10/cuda/CUDACachingAllocator.cpp", "CUDA runtime, cudaErrorMemoryAllocation"),
        found_by=("DD305",),
        signs={
            "cuda-out-of-memory": proof(
                ("OutOfMemoryError: ", "CUDA out of memory. ", "HIP out of memory. "),
                r"(?:OutOfMemoryError|RuntimeError): (?:CUDA|HIP|XPU) out of memory\.(?: Tried to allocate"
                r" (?P<size>[\d.]+ ?\w+)\.?(?: ?\(?GPU (?P<gpu>\d+))?)?",
            ),
            "cuda-out-of-memory-told": Sign(  # as engines repeat it
                ("CUDA out of memory. ", "HIP out of memory. "),
                r"^(?!.*retry).*(?:CUDA|HIP) out of memory\. Tried to allocate",
            ),
            "cuda-error-2": proof(
                ("CUDA error: out of memory", "CUDA driver error: out of memory", "'out of memory'"),
                r"(?:CUDA(?: driver)? error: out of memory|Cuda failure (?:2 )?'out of memory')",
            ),
            "cublas-no-memory": Sign("CUBLAS_STATUS_ALLOC_FAILED"),
            "gpu-memory-by-name": Sign(
                (
                    "CUDA_ERROR_OUT_OF_MEMORY",
                    "cudaErrorMemoryAllocation",
                    "hipErrorOutOfMemory",
                    "RESOURCE_EXHAUSTED: Out of memory",
                )
            ),
            "no-room-for-cache": proof(  # vLLM
                ("No available memory for the cache blocks", "is less than desired GPU memory utilization"),
                r"Error: [^\n]*(?:for the cache blocks|less than desired GPU memory)",
            ),
            "nccl-no-gpu-memory": nccl.hint("Failed to CUDA calloc"),
        },
    ),
    "DDJ163": code_cause(
        name="device-mismatch",
        title="Tensors of {who} are on different devices[: {found}][: the group is on {bound}, the tensor on {issued}]",
        finds="An operation received tensors on two devices, or a tensor on another GPU than the rank's process group.",
        why="A batch or a part of the model stayed on the CPU, or on GPU 0 although the rank uses another.",
        remedies=(SET_DEVICE,),
        next_check="print(x.device, next(model.parameters()).device) before the line in the evidence",
        references=("torch, aten/src/ATen", "torch 2.15 c10d/nccl2", "torch, nn/parallel/distributed.py"),
        found_by=("DD609", "DDL117", "DD774", "DDL136", "DDL167"),
        signs={
            "two-devices": proof(
                "all tensors to be on the same device",
                r"(?:on the same device, but (?:found at least two devices, |got )(?P<found>[^!(]{1,80})|"
                r"on the same device\b)",
            ),
            "bound-elsewhere": proof(
                "ProcessGroupNCCL is bound to device",
                r"is bound to device (?P<bound>cuda(?::\d{1,5})?) but an operation was issued on"
                r" (?P<issued>cuda(?::\d{1,5})?)",
            ),
            "input-and-weight": proof(
                (") and weight type (", "its parameters and buffers on device"),
                r"Input type \((?P<found>.{1,80}?)\) should be the same|found one of them on device: "
                r"(?P<where_else>\S+)",
            ),
            "devices-in-other-words": proof(
                (
                    "Expected object of device type",
                    "Expected object of backend ",
                    "to have the same device as",
                    "must be on the same device",
                    "arguments are located on different GPUs",
                    "cannot be accessed from Triton (cpu tensor?)",
                    "device type for generator but found",
                    "indices should be either on ",
                ),
                r"Error: (?:[^\n]{0,200}Expected object of (?:device type|backend) (?P<found>\w+ but got (?:device type"
                r" |backend )?\w+)|[^\n]{0,200}(?:the same device|different GPUs|cpu tensor|for generator but found))",
            ),
        },
    ),
    "DDJ164": code_cause(
        name="backend-device-mismatch",
        title="{who} passed a tensor on a device that the process group does not support[: {on}]",
        finds="A collective received a tensor on a device for which the process group has no backend, such as a"
        " CPU tensor with NCCL.",
        why="NCCL supports only GPU tensors. Gathered objects and metrics are often on the CPU.",
        remedies=(
            in_code('Use both backends, init_process_group("cpu:gloo,cuda:nccl"), or move the tensor to the GPU'),
        ),
        next_check="print(tensor.device, dist.get_backend_config()) before the collective in the evidence",
        references=("torch 2.4 to 2.15, c10d/ProcessGroup.hpp, c10d/ProcessGroupNCCL.cpp, distributed_c10d.py",),
        signs={
            "no-backend-for-device": proof(
                ("No backend type associated with device type", "Tensors must be CUDA and dense"),
                r"No backend type associated with device type (?P<on>\w+)|Tensors must be CUDA and dense",
            )
        },
    ),
    "DDJ174": JobCause(
        name="dataloader-worker-died",
        title="DataLoader worker of {who} died[: {signal}][, process {pid}]",
        finds="A worker process of a DataLoader exited or was killed by a signal.",
        why="“Killed” usually means that the host ran out of memory. A segmentation fault comes from a library"
        " that decodes the samples.",
        remedies=(
            remedy("Use fewer workers or more memory if it was killed"),
            in_code("Run with num_workers=0 if it crashed, to see the stack and the sample"),
        ),
        next_check="dmesg -T | grep -i -E 'oom|segfault' on the host",
        references=("torch, torch/csrc/DataLoader.cpp, torch/utils/data/dataloader.py",),
        signs={
            "worker-signal": proof(
                "is killed by signal: ",
                r"DataLoader worker \(pid (?P<pid>\d+)\) is killed by signal:"
                r" (?P<signal>(?!Bus error|Terminated|Interrupt)[^.\n]+)",
            ),
            "worker-left": Sign(
                "exited unexpectedly",
                r"DataLoader worker \(pid\(s\) (?P<pid>[\d, ]+)\) exited unexpectedly|Pin memory thread exited",
            ),
        },
    ),
    "DDJ175": code_cause(
        name="checkpoint-mismatch",
        title="Checkpoint loaded by {who} does not match the model[ {module}][: {what}]",
        finds="load_state_dict or torch.load rejects the content of the checkpoint.",
        why="The checkpoint belongs to another model or version, was saved with or without DDP's “module.” prefix,"
        " or was saved on GPUs that this job does not have.",
        remedies=(
            in_code("If sizes differ or layers are missing: use the configuration that the checkpoint was saved with"),
            in_code(
                "If all names differ by “module.”: save model.module.state_dict(), and load it before wrapping in DDP"
            ),
            in_code(
                "If names contain _fsdp or _flat_param, or whole tensors meet shards: use get_model_state_dict and"
                " set_model_state_dict of torch.distributed.checkpoint.state_dict"
            ),
            in_code("Load with torch.load(path, map_location='cpu', weights_only=True)"),
        ),
        next_check="compare list(torch.load(PATH, map_location='cpu'))[:5] with list(model.state_dict())[:5]",
        references=("torch, nn/modules/module.py, optim/optimizer.py, serialization.py",),
        found_by=("DDL129",),
        signs={
            "state-dict": proof(
                (
                    "Error(s) in loading state_dict for",
                    "loaded state dict contains a parameter group that",
                    "loaded state dict has a different number of",
                    "Attempting to deserialize object on",
                    "Weights only load failed",
                ),
                r"(?s)Error\(s\) in loading state_dict for (?P<module>\w+)(?::\s*(?P<what>(?:size mismatch|Missing key"
                r"|Unexpected key)[^\n]{1,120}))?|loaded state dict"
                r"|Attempting to deserialize object on (?:a )?CUDA|Weights only load failed",
                lines=2,
            ),
            "size-mismatch": Sign(
                "size mismatch for ",
                r"^\s*(?:\[rank\d+\]:\s*)?(?P<what>size mismatch for \S+): copying a param with shape",
            ),
            "checkpoint-of-other-job": proof(
                (
                    "The checkpoint being loaded used a DP world size",
                    "Missing key in checkpoint state_dict:",
                    "Size mismatch between saved",
                )
            ),
        },
    ),
    "DDJ176": code_cause(
        name="import-failed",
        title="{who} cannot load {missing}",
        finds="An import ends with ModuleNotFoundError or ImportError, or Python does not find the script.",
        why="The ranks run in another environment than the shell: another interpreter, a node without the package,"
        " or a library that is not on the loader's path.",
        remedies=(
            remedy(
                "Install it in the ranks' environment on every node",
                "srun --ntasks-per-node=1 python -m pip install PACKAGE",
            ),
        ),
        next_check='srun --ntasks-per-node=1 python -c "import sys, NAME; print(sys.executable)"',
        references=("Python: ModuleNotFoundError, ImportError; Modules/main.c",),
        signs={
            "module-not-found": proof(
                (
                    "ModuleNotFoundError: No module named",
                    "ImportError: cannot import name",
                    ": cannot open shared object file",
                ),
                r"(?:ModuleNotFoundError: No module named '|ImportError: cannot import name '"
                r"|(?:Import|OS)Error: (?=lib\S+: cannot open shared object file))(?P<missing>[^':]+)",
            ),
            "library-not-found": Sign(  # on the line after a library's message
                ": cannot open shared object file",
                r"^(?:\[rank\d+\]: ?)?(?P<missing>lib[^\s:]+): cannot open shared object",
            ),
            "no-script": proof(
                ": can't open file '",
                r"python[\d.]*: can't open file '(?P<missing>\s*[^'\s][^']{0,300})': \[Errno \d+\]",
            ),
            "interpreter-lacks-module": proof(
                ": No module named ", r"python[\d.]*: No module named (?P<missing>[\w.]+)"
            ),
            "command-not-found": Sign(
                (": command not found", "error: execve(): "),
                r"(?:: |execve\(\): |^)(?P<missing>torchrun|python[\d.]*|deepspeed|accelerate|mpirun|horovodrun)"
                r"(?:: command not found|: No such file)",
            ),
        },
    ),
    "DDJ177": JobCause(
        name="loss-not-finite",
        title="The job ended itself: the loss or a gradient of {who} is NaN or infinite",
        finds="A guard of the training code or of torch stops at NaN, or at a loss scale that cannot fall further.",
        why="Typical reasons are a learning rate that is too high, a bad sample, half precision and, rarely, a"
        " faulty GPU.",
        remedies=(
            in_code(
                "Use a lower learning rate, or skip the batch, and restart from the last checkpoint if there is one"
            ),
            in_code("Train in bfloat16, which needs no loss scale"),
        ),
        next_check="run the same batch on another GPU: the same NaN means code or data, a"
        " different result means the GPU",
        references=(
            "torch, c10d/NanCheck.hpp",
            "fairseq, optim/dynamic_loss_scaler.py; DeepSpeed, runtime/fp16/loss_scaler.py",
            "Megatron-LM, core/distributed/param_and_grad_buffer.py; torchvision, references/detection/engine.py",
        ),
        signs={
            "nan-guard": proof(
                (
                    "stopping training",
                    "Minimum loss scale reached",
                    "Current loss scale already at minimum",
                    "NaN found in input tensor",
                    "found NaN in local grad norm",
                    "Loss became infinite or NaN",
                    "not finite, stopping",
                ),
                r"(?i)loss is (?:nan|-?inf)\w*, stopping|minimum loss scale reached"
                r"|already at minimum - cannot decrease"
                r"|NaN found in input tensor|found NaN in local grad|became infinite or NaN|not finite, stopping",
            ),
            "loss-exception": proof(  # raised by a check in the job's own code
                (
                    "FloatingPointError: ",
                    *(f"{loss} is {value}" for loss in ("loss", "Loss") for value in ("nan", "NaN", "inf")),
                    *("non-finite loss", "Non-finite loss"),
                ),
                r"(?i)[a-z]Error: (?=.{0,160}(?:loss|grad)).{0,160}\b(?:nan|inf|infinite|not finite|non-finite)\b",
            ),
            "guard-of-framework": proof(
                (
                    "found NaN in local forward",
                    "found Inf in local",
                    "returned nan values in its ",
                    "for gradients from `parameters` is non-finite",
                    "The loss returned in `training_step` is ",
                ),
                r"found (?:NaN in local forward|Inf in local)|Backward\w*' returned nan values in its|is non-finite"
                r"|`training_step` is (?:nan|inf)",
            ),
        },
    ),
    "DDJ178": code_cause(
        name="device-assert",
        title="Kernel on the GPU of {who} failed an assertion[: {assertion}]",
        finds="An assertion in a CUDA kernel failed, usually because of an index outside of an embedding or a"
        " label outside of the classes.",
        why="The GPU's context is lost with it, and every later call of the rank fails with the same message.",
        remedies=(
            in_code("Check indices and labels of the batch: ids.min() >= 0, ids.max() < embedding.num_embeddings"),
        ),
        next_check="run briefly with CUDA_LAUNCH_BLOCKING=1, or run the batch on the CPU:"
        " the traceback then shows the line",
        references=("torch, aten/src/ATen/native/cuda; CUDA runtime, cudaErrorAssert",),
        signs={
            "kernel-assertion": proof(
                ("device-side assert triggered", ": block: ["),
                r"block: \[[\d,]+\], thread: \[[\d,]+\] Assertion `(?P<assertion>[^`]{1,120})` failed"
                r"|device-side assert triggered",
            )
        },
    ),
    "DDJ179": JobCause(
        name="corrupt-data",
        title="{who} cannot read a truncated or damaged file[: {reason}]",
        domain="data",
        restart="no",
        finds="A sample, an archive or a checkpoint cannot be decoded.",
        why="An interrupted upload or save, or a full disk, leaves such files. The rank that reads the file stops.",
        remedies=(
            remedy("Find the file, then download or write it again"),
            in_code("Skip and count samples that cannot be decoded"),
        ),
        next_check="catch the exception in the dataset's __getitem__ and print the sample's path",
        references=(
            "Pillow; torch, caffe2/serialize/inline_container.cc; Python: zipfile, tarfile, zlib, json; Arrow",
        ),
        signs={
            "not-decoded": Sign(
                _NOT_DECODED,
                r"^(?!.*Warning: ).*?"
                r"(?P<reason>cannot identify image file[^\n]{0,120}|image file is truncated|Truncated File Read"
                r"|EOFError: Ran out of input|PytorchStreamReader failed[^\n]{0,80}|The file might be corrupted"
                r"|BadZipFile: [^\n]{0,80}|tarfile\.ReadError: [^\n]{0,80}|zlib\.error: Error[^\n]{0,80}"
                r"|JSONDecodeError: [^\n]{0,80}|UnpicklingError: (?!Weights only)[^\n]{0,80}"
                r"|SafetensorError: (?!.*StorageFull)[^\n]{0,80}"
                r"|lib\.ArrowInvalid[^\n]{0,80}|Unable to open file \(truncated|invalid load key)",
            ),
            "archive-cut": Sign(
                ("ended before the end-of-stream marker was reached", "BadGzipFile: ", "pickle data was truncated"),
                r"(?P<reason>ended before the end-of-stream marker|BadGzipFile: [^\n]{0,80}|pickle data was truncated)",
            ),
        },
    ),
}
