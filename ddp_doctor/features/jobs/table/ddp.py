"""Causes in how the job's code uses torch.distributed: DDP's rules, and who calls which collective."""

from ddp_doctor.features.jobs.table.kinds import JobCause, code_cause
from ddp_doctor.features.jobs.table.remedies import in_code, remedy
from ddp_doctor.features.jobs.table.signs import Sign, nccl, proof, watchdog

CAUSES = {
    "DDJ165": code_cause(
        name="pg-not-initialized",
        title="{who} called torch.distributed without a process group",
        finds="A collective, DDP or SyncBatchNorm ran before init_process_group, or after destroy_process_group.",
        why="They need a process group. A model with SyncBatchNorm needs one even on a single GPU.",
        remedies=(
            in_code("Call init_process_group first in every process, and start the job with torchrun"),
            in_code("Use BatchNorm instead of SyncBatchNorm on one GPU"),
        ),
        next_check="check the frame above the error: SyncBatchNorm, or a call after destroy_process_group?",
        references=("torch 1.13 to 2.15, distributed/distributed_c10d.py",),
        found_by=("DDL108", "DDL109"),
        signs={
            "no-default-group": proof(
                ("Default process group has not been initialized", "Default process group is not initialized")
            ),
            "group-of-framework-missing": Sign(
                ("group is not initialized", "DeepSpeed backend not set"),
                r"Error: (?:[\w -]{1,60} parallel group is not initialized|DeepSpeed backend not set)",
            ),
        },
    ),
    "DDJ166": code_cause(
        name="ddp-unused-parameters",
        title="Model parameters get no gradient on {who}[: {parameters}][ (parameter indices {indices})]",
        finds="DDP waits for gradients of parameters that the last step did not use.",
        why="DDP reduces a bucket when all its gradients are ready. A branch that is not taken leaves the bucket"
        " incomplete.",
        remedies=(
            in_code("Use every parameter in the loss, or freeze unused parameters"),
            in_code(
                "Set DistributedDataParallel(model, find_unused_parameters=True)",
                cost="a graph traversal in every step",
            ),
        ),
        next_check="run briefly with TORCH_DISTRIBUTED_DEBUG=INFO: the message then has the parameters' names",
        references=("torch 2.4 to 2.15, c10d/reducer.cpp",),
        found_by=("DD775", "DD776", "DDL128"),
        signs={
            "unfinished-reduction": proof(
                (
                    "Expected to have finished reduction in the prior iteration",
                    "has parameters that were not used in producing the loss",  # Lightning's text
                ),
                r"(?s)not used in producing the loss|finished reduction in the prior iteration"
                r"(?=(?:.*?did not receive grad for rank (?P<group_rank>\d+))?)"
                r"(?:.*?Parameters which did not receive grad for rank \d+: (?P<parameters>[^\n]{1,200}))?"
                r"(?:.*?Parameter indices which did not receive grad for rank \d+: (?P<indices>\d[\d ]{0,80}))?",
                lines=6,
            )
        },
    ),
    "DDJ167": code_cause(
        name="ddp-ready-twice",
        title="DDP received a parameter's gradient twice in one step on {who}[: {parameter}]",
        finds="A parameter under DDP is used in two backward passes of one step, because of re-entrant"
        " checkpointing, shared weights, or a call that bypasses forward().",
        why="DDP reduces each gradient once. Later contributions would be lost.",
        remedies=(
            in_code("Use checkpoint(layer, x, use_reentrant=False), and drop find_unused_parameters"),
            in_code("Set DistributedDataParallel(model, static_graph=True) if the graph is the same in each step"),
        ),
        next_check="run briefly with TORCH_DISTRIBUTED_DEBUG=INFO: the message then has the parameter's name",
        references=("torch 2.4 to 2.15, c10d/reducer.cpp",),
        signs={
            "marked-twice": proof(
                ("Expected to mark a variable ready only once", "has been marked as ready twice"),
                r"(?s)mark a variable ready only once(?:.*?with name (?P<parameter>\S+) has been marked)?"
                r"|with name (?P<name>\S+) has been marked|marked as ready twice",
                lines=3,
            )
        },
    ),
    "DDJ168": code_cause(
        name="ddp-no-grad-params",
        title="{who} wrapped a model without trainable parameters in DDP",
        finds="No parameter of the wrapped module requires a gradient.",
        why="The module is frozen, or a filter on names matched nothing, so DDP has nothing to reduce.",
        remedies=(
            in_code("Do not wrap frozen modules"),
            in_code("Check whether the filter that freezes parameters matches too many"),
        ),
        next_check="print sum(p.requires_grad for p in model.parameters()) before DistributedDataParallel(model)",
        references=("torch 1.13 to 2.15, nn/parallel/distributed.py",),
        found_by=("DD784",),
        signs={
            "nothing-to-train": proof("DistributedDataParallel is not needed when a module"),
            "no-tensors-for-buckets": proof(  # torch up to 1.2
                "tensors.size() > 0 INTERNAL ASSERT FAILED", r"reducer\.cpp"
            ),
        },
    ),
    "DDJ169": code_cause(
        name="ddp-buffer-inplace",
        title="DDP's broadcast of buffers changed a tensor of {who} between forward and backward[: {tensor}]",
        finds="Autograd finds that a one-dimensional tensor was changed in place after the forward pass.",
        why="With broadcast_buffers=True, each forward overwrites the buffers, such as BatchNorm's, with those of"
        " rank 0. A second forward before backward() thus changes values that the first one saved. Other in-place"
        " changes cause the same message.",
        remedies=(
            in_code("Set DistributedDataParallel(model, broadcast_buffers=False)"),
            in_code("Run both inputs in one forward pass"),
        ),
        next_check="run briefly with torch.autograd.set_detect_anomaly(True): it names the forward line",
        references=("torch, torch/csrc/autograd/saved_variable.cpp; nn/parallel/distributed.py",),
        signs={
            "buffer-changed": Sign(
                "has been modified by an inplace operation",
                r"modified by an inplace operation: \[(?P<tensor>torch\.[\w.]+ \[\d+\])\]",
            ),
            "buffer-changed-in-lines": Sign(  # wrapped, as in reports
                "needed for gradient computation has been",
                r"(?s)has been(?!\s+modified by an inplace operation:"
                r" \[)\s+modified\s+by\s+an\s+inplace\s+operation:\s+\[(?P<tensor>torch\.[\w.]+\s\[\d+\])\]",
                lines=4,
            ),
        },
    ),
    "DDJ170": code_cause(
        name="collective-mismatch",
        title="Ranks have mismatched collectives or models[: rank {rank} called {op}][ of"
        " {shape}][ as collective {seq}][, rank {peer_rank} {peer_op}][ of {peer_shape}][ as collective {peer_seq}]"
        "[: {peer} sent {remote} bytes to a buffer of {local}][: rank {this} has"
        " {count} parameters, rank {other} {other_count}][: a parameter of {sizes} on"
        " rank {rank}][: {bytes} bytes instead of {other_bytes}]",
        finds="torch, gloo, NCCL or DDP reports that ranks differ in their operation, size or model.",
        why="In a collective, every rank must make the same call with matching tensors. Branches on data or on the"
        " rank, and batches or models of different sizes, violate this.",
        remedies=(
            in_code("Call the same collectives on every rank, in the same order and with the same shapes"),
            in_code(
                "Build the same model on every rank; use join() or drop_last=True if ranks"
                " have different numbers of batches"
            ),
        ),
        next_check="run briefly with TORCH_DISTRIBUTED_DEBUG=DETAIL: torch then compares"
        " every collective between ranks",
        references=(
            "torch 2.4 to 2.15, c10d/ProcessGroupWrapper.cpp, c10d/reducer.cpp, c10d/TraceUtils.h",
            "gloo transport/tcp/pair.cc",
        ),
        found_by=("DD614", "DDL133", "DDL134", "DDL135", "DD773", "DD770"),
        signs={
            "fingerprints-differ": proof(
                "Detected mismatch between collectives on ranks",
                r"Rank (?P<rank>\d+) is running collective: CollectiveFingerPrint\((?:SequenceNumber="
                r"(?P<seq>\d+),? ?)?OpType=(?P<op>\w+)(?:, TensorShape=(?P<shape>\[[\d, ]*\]))?.*?but Rank "
                r"(?P<peer_rank>\d+) is running collective: CollectiveFingerPrint\((?:SequenceNumber=(?P<peer_seq>\d+)"
                r",? ?)?OpType="
                r"(?P<peer_op>\w+)(?:, TensorShape=(?P<peer_shape>\[[\d, ]*\]))?",
            ),
            "models-differ": proof(
                (
                    "appears not to match sizes of the same param in process",
                    "appears not to match strides of the same param in process",
                    "DDP expects same model across all ranks",
                ),
                r"(?:\[(?P<rank>\d+)\]: )?(?:params|replicas\[\d+\])\[\d+\] in this process with (?:sizes|shape"
                r"|strides) (?P<sizes>\[[\d, ]*\]) appears not to match (?:sizes"
                r"|strides) of the same param in process (?P<peer_rank>\d+)|DDP expects same model across all ranks,"
                r" but Rank (?P<this>\d+) has (?P<count>\d+) params, while rank (?P<other>\d+) has inconsistent "
                r"(?P<other_count>\d+)",
            ),
            "tensors-of-some-ranks": watchdog.hint(
                "broadcasted by subset of ranks"
            ),  # submitted-by-some-ranks names the rank
            "gloo-sizes-differ": proof(
                ("op.preamble.length <= op.nbytes", "distributed collective mismatch in your code"),
                r"op\.nbytes\. (?P<bytes>\d+) vs (?P<other_bytes>\d+)|collective mismatch",
            ),
            "nccl-sizes-differ": nccl.sign(
                ("message truncated : received", "message truncated : receiving", "collective mismatch error"),
                r"message truncated : receiv(?:ed|ing) (?P<bytes>\d+) bytes instead of (?P<other_bytes>\d+)"
                r"|NET/IB : (?:[^\n]{0,60} peer (?P<peer>[\w.:%\[\]-]+)<\d+>)?[^\n]{0,60}collective mismatch error,? "
                r"local size (?P<local>\d+) remote(?: size (?P<remote>\d+))?",
            ),
            "fingerprint-of-one": proof(  # a line truncated before the second rank
                "Detected mismatch between collectives on ranks", r"between collectives on ranks(?!.*\bbut Rank)"
            ),
            "mismatch-of-old-nccl": nccl.sign("Mismatched collective detected"),  # NCCL 2.4 to 2.6
            "mismatch-of-frameworks": Sign(  # Horovod, DeepSpeed, accelerate
                (
                    "Mismatched data types: One rank",
                    "Mismatched MPI operations",
                    "tensor shapes: One rank sent",
                    "disagreement between rank0 and rank",
                    "due to shape mismatches. All shapes",
                    "due to inadequate shapes. All shapes",
                )
            ),
        },
    ),
    "DDJ171": code_cause(
        name="rank0-only-collective",
        title="{who} called a collective that other ranks did not call[: {call}]",
        finds="One rank waits in a barrier or another collective, while the others wait in the next one.",
        why="Saving, evaluation and logging under “if rank == 0” often end in a barrier, which every rank must reach.",
        remedies=(in_code("Call functions with collectives on every rank, and decide inside which rank writes"),),
        next_check="run with TORCH_FR_BUFFER_SIZE=2000 and"
        " TORCH_FR_DUMP_TEMP_FILE=/shared/fr_ : ddp-doctor logs reads the dumps",
        references=("torch 2.15, c10d/ProcessGroupNCCL.cpp, gloo transport/tcp/unbound_buffer.cc",),
        # Evaluated from the timeouts: causes/time_outs.py.
    ),
    "DDJ172": code_cause(
        name="timeout-long-rank0-work",
        title="{who} did other work until other ranks timed out[ in {call}]",
        finds="Some ranks time out in a collective, while another rank still does its own work.",
        why="The other ranks wait only until the timeout of the process group: 10 minutes with NCCL, 30 with gloo.",
        remedies=(
            in_code("Raise the timeout: init_process_group(timeout=timedelta(hours=2))"),
            in_code("Prepare the data before the job, or a part of it on every rank"),
        ),
        next_check="py-spy dump --pid PID of that rank while other ranks wait",
        references=("torch 2.15, distributed/constants.py",),
        # Evaluated from the timeouts: causes/time_outs.py.
    ),
    "DDJ173": JobCause(
        name="peer-died-secondary",
        title="[{gone} exited without a message: {who} lost the connection][{who} could not connect to {peer}, where"
        " nothing listens][{who} lost torchrun's rendezvous: {ended}]",
        finds="Ranks report closed or refused connections, and no line shows why the other end closed.",
        why="Look for the first rank that ended. Its output, its host's kernel log or the scheduler's records"
        " contain the reason.",
        remedies=(
            remedy(
                "Read the output of the rank at the address in the messages, and its host's kernel log",
                "dmesg -T | tail",
                "sacct -j JOB",
            ),
        ),
        next_check="the output of every rank (torchrun --log-dir=logs --tee 3, srun --label, mpirun --tag-output)",
        references=("gloo transport/tcp/pair.cc; errno(3)",),
        # Evaluated only from signs of role victim (pointers.py).
    ),
}
