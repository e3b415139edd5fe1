"""Causes of jobs that never began to train: refused starts, wrong numbers of ranks, libraries of another build."""

from ddp_doctor.features.jobs.table.kinds import JobCause, code_cause, host_cause, network_cause, scheduler_cause
from ddp_doctor.features.jobs.table.remedies import in_code, on_node, remedy, setting
from ddp_doctor.features.jobs.table.signs import Sign, launcher, proof

CAUSES = {
    "DDJ213": scheduler_cause(
        name="too-few-slots",
        restart="no",
        title="The launcher has too few slots[ for {wanted} ranks]",
        finds="mpirun or srun is asked to start more ranks than its hosts or its allocation have slots.",
        why="No rank was started. Open MPI counts one slot per core, and one per host that --host names.",
        remedies=(
            remedy(
                "Name the slots of each host, or start fewer ranks",
                "mpirun --host node0:8,node1:8 -np 16 python train.py",
            ),
            remedy("Start more ranks than slots, if the GPUs suffice", "mpirun --oversubscribe -np N python train.py"),
            remedy(
                "Request as many tasks in SLURM as the job starts", "sbatch --nodes=2 --ntasks-per-node=8 job.sbatch"
            ),
        ),
        next_check="count the slots in the hostfile, or scontrol show job $SLURM_JOB_ID",
        references=("Open MPI help-orte-rmaps-base.txt", "Slurm src/common/slurm_errno.c"),
        signs={
            "mpirun-slots": launcher.proof(
                "not enough slots available", r"slots available(?: in the system to satisfy the (?P<wanted>\d+))?"
            ),
            "srun-slots": launcher.proof(
                ("More processors requested than permitted", "Requested node configuration is not available")
            ),
        },
    ),
    "DDJ215": scheduler_cause(
        name="start-refused",
        title="The job was not started[: {reason}]",
        finds="srun, sbatch or salloc rejects the request, or mpirun cannot start its daemon on a host.",
        why="No rank was started, so no rank has any output.",
        remedies=(
            remedy("Correct the request that the message names, such as the account, GPUs, memory or partition"),
            remedy(
                "Remove memory limits that sbatch passes on, if srun says that they are mutually exclusive",
                "unset SLURM_MEM_PER_CPU SLURM_MEM_PER_GPU SLURM_MEM_PER_NODE",
            ),
            remedy("Test that each host of mpirun accepts ssh and has the same Open MPI", "ssh NODE which orted"),
        ),
        next_check="scontrol show job $SLURM_JOB_ID; sinfo -o '%P %a %D %G %m'",
        references=("Slurm src/common/slurm_errno.c, src/srun/libsrun/allocate.c", "Open MPI help-errmgr-base.txt"),
        signs={
            "request-refused": launcher.sign(
                tuple(f"{name}: {level}: " for name in ("srun", "salloc") for level in ("error", "fatal")),
                r"(?:srun|salloc): (?:error|fatal): (?:Unable to (?:create step for job \S+|allocate resources"
                r"|confirm allocation[^:]*)|Task launch for \S+ failed on node \S+): "
                r"(?!More processors|Requested node conf)(?P<reason>.{1,160})",
            ),
            "limits-contradict": launcher.sign(
                " are mutually exclusive", r"(?:srun|sbatch|salloc): fatal: (?P<reason>.{1,160} are mutually exclusive)"
            ),
            "submission-refused": launcher.sign(
                ("sbatch: error: ", "Batch job submission failed: "),
                r"sbatch: error: (?P<reason>.{0,40}job_submit.{1,160}|Batch job submission failed: .{1,160})",
            ),
            "daemon-not-started": launcher.hint("unable to reliably start one or more"),
        },
    ),
    "DDJ216": JobCause(
        name="rank-count-mismatch",
        restart="no",
        title="The number of ranks does not fit the job's parallel or batch sizes[: {message}]",
        finds="A framework compares the number of ranks with tensor, pipeline, data or batch sizes, and they differ.",
        why="The launcher started more or fewer ranks than the configuration needs. Often a variable of the launch"
        " script is empty, and only one rank is started.",
        remedies=(
            remedy("Start as many ranks as the configuration needs: nodes times processes per node"),
            in_code("Or choose tensor, pipeline and batch sizes that fit the number of ranks"),
        ),
        next_check="compare nnodes and nproc-per-node of the launch with the sizes in the configuration",
        references=(
            "DeepSpeed runtime/config.py",
            "Megatron-LM core/parallel_state.py, training/arguments.py",
            "torch 2.15 distributed/device_mesh.py, distributed_c10d.py",
        ),
        found_by=("DD128",),
        signs={
            "batch-sizes-do-not-fit": proof(
                ("Check batch related parameters", "Micro batch size per gpu: "),
                r"(?:Check batch related parameters\. |(?=Micro batch size per gpu: -?\d+ has to be greater than 0))"
                r"(?P<message>[^\n]{1,160})",
            ),
            "parallel-sizes-do-not-fit": Sign(
                (
                    "is not divisible by",
                    "must be divisible by",
                    "should be divisible by",
                    "mpiSize == tp",
                    "should be within the the world_size",
                    "should be within the world_size",
                    "Mesh should not be bigger than default world size",
                ),
                r"(?i)(?P<message>world[ _]size\)? ?\(?\d+\)? (?:is not|must be|should be) divisible by[^\n]{0,100}"
                r"|mpiSize == tp \* pp|The new group's rank should be within[^\n]{0,60}"
                r"|Mesh should not be bigger than default world size[^\n]{0,60})",
            ),
        },
    ),
    "DDJ217": code_cause(
        name="local-rank-argument",
        title="The script of {who} does not accept the argument --local-rank that its launcher passes",
        finds="argparse rejects --local-rank or --local_rank.",
        why="torch.distributed.launch passes --local-rank since torch 2.0 and passed --local_rank before. torchrun"
        " passes neither and sets LOCAL_RANK.",
        remedies=(
            in_code(
                "Accept both spellings:"
                " add_argument('--local-rank', '--local_rank', type=int, default=int(os.environ.get('LOCAL_RANK', 0)))"
            ),
            in_code("Or read os.environ['LOCAL_RANK'], and start the script with torchrun, which passes no argument"),
        ),
        next_check="python SCRIPT --help | grep local",
        references=("torch 2.0 to 2.15, distributed/launch.py",),
        found_by=("DDL118",),
        signs={"local-rank-argument": proof("unrecognized arguments: ", r"unrecognized arguments: .*--local[-_]rank")},
    ),
    "DDJ218": host_cause(
        name="library-of-another-build",
        title="A library of {who} was built for another torch, CUDA or C library[: {missing}]",
        finds="A compiled package has undefined symbols, needs a newer C library, or was compiled for another CUDA.",
        why="The package is installed, but its binary does not fit the torch, the CUDA toolkit or the Linux of this"
        " host. Reinstalling the same wheel does not help.",
        remedies=(
            remedy(
                "Build the package against the installed torch, or take its wheel for this torch and CUDA",
                "pip install --no-build-isolation --no-deps --force-reinstall --no-binary PACKAGE PACKAGE",
            ),
            remedy("If it needs a newer GLIBC, use an older wheel or a newer container image"),
            remedy(
                "If two CUDA versions differ, point CUDA_HOME to the toolkit of torch's version",
                settings=(setting("CUDA_HOME", "/usr/local/cuda"),),
            ),
        ),
        next_check='python -c "import torch; print(torch.__version__, torch.version.cuda)"; nvcc --version',
        references=("glibc elf/dl-lookup.c, elf/dl-version.c", "torch 2.15 utils/cpp_extension.py"),
        signs={
            "undefined-symbol": Sign(
                "undefined symbol: ",
                r"^(?!.*(?:NCCL|failed on)).*?(?:^|[\s:])"
                r"(?P<missing>(?!\S*libnccl)[^\s:]+\.so[\w.]*): undefined symbol: (?!p?nccl)",
            ),
            "needs-newer-libc": Sign(
                "' not found (required by ",
                r"version `(?:GLIBC|GLIBCXX|CXXABI)_[\d.]+' not found \(required by (?P<missing>[^\s)]+)",
            ),
            "cuda-of-other-version": Sign(
                (
                    "does not match the version torch was compiled with",
                    "mismatches the version that was used to compile",
                    "CUDA Setup failed despite GPU being available",
                )
            ),
        },
    ),
    "DDJ219": host_cause(
        name="extension-not-compiled",
        title="A C++ or CUDA extension of {who} was not compiled[: {reason}]",
        finds="The compiler or ninja ends with an error while a package builds an extension when the job starts.",
        why="A header, the compiler or the CUDA toolkit is missing on the host, or does not fit torch.",
        remedies=(
            remedy("Install the CUDA toolkit of torch's version, with its headers, and a C++ compiler"),
            remedy("Build the extension once in the image, not on each node when the job starts"),
            remedy("Remove a build that was left unfinished", "rm -r ~/.cache/torch_extensions"),
        ),
        next_check="the compiler's first error above the evidence; nvcc --version; c++ --version",
        references=("torch 2.15 utils/cpp_extension.py", "ninja src/build.cc; GCC"),
        signs={
            "header-missing": Sign(
                ": fatal error: ", r":\d+: fatal error: (?P<reason>\S{1,100}: No such file or directory)"
            ),
            "compiler-failed": Sign(
                ("Command '['ninja'", "Command '['which', "),
                r"Error: Command '\[(?:'ninja'|'which', '[^']{0,100}(?:[cg]\+\+|nvcc)').{0,400}non-zero exit",
            ),
            "extension-error": Sign("Error building extension '", r"Error building extension '(?P<reason>[^']{1,80})'"),
        },
    ),
    "DDJ220": code_cause(
        name="ddp-model-device",
        title="DistributedDataParallel of {who} got a model that is"
        "[ still on the CPU ({cpu})][ on several devices ({several})][ on other devices than device_ids{other}]",
        finds="device_ids names one GPU, but the parameters of the model are on the CPU or on several GPUs.",
        why="The model was wrapped before it was moved to the rank's GPU, or device_map='auto' spread it over GPUs.",
        remedies=(
            in_code("Move the model before wrapping it: DDP(model.to(local_rank), device_ids=[local_rank])"),
            in_code("If it was loaded with device_map='auto', load it with device_map={'': local_rank}"),
            in_code("Omit device_ids for a model that must stay on several GPUs or on the CPU"),
        ),
        next_check="print({p.device for p in model.parameters()}) before the wrap",
        references=("torch, nn/parallel/distributed.py",),
        found_by=("DD774", "DDL136", "DDL117"),
        signs={
            "ddp-device-ids": proof(
                "DistributedDataParallel device_ids and output_device",
                r"(?s)device_ids and output_device arguments only work(?:.*?module parameters \{(?:"
                r"(?P<cpu>device\(type='cpu'\))\}|(?P<several>device\([^}]{1,60}\),\s[^}]{0,200})|(?P<other>))|)",
                lines=3,
            )
        },
    ),
    "DDJ221": JobCause(
        name="download-failed",
        title="{who} could not download a file[: {reason}]",
        domain="network",
        restart="no",
        finds="A request to a hub or a web server ends with an error, such as 403, 429 or too many retries.",
        why="Many ranks that download at once reach the server's rate limit. Compute nodes often have no way out.",
        remedies=(
            remedy("Download once before the job starts, to a directory that all nodes read", "hf download REPO"),
            remedy("Then read only from the cache", settings=(setting("HF_HUB_OFFLINE", "1"),)),
            remedy("Log in if the server answers 401 or 403", "hf auth login"),
        ),
        next_check="curl -I URL on the host",
        references=("huggingface_hub errors.py; requests exceptions.py; Python urllib.error",),
        signs={
            "request-error": Sign(
                (" Client Error: ", " Server Error: ", "HTTP Error ", "Max retries exceeded with url"),
                r"^(?!.*(?:[Rr]etry|wandb)).*Error\b.{0,60}?(?P<reason>\d{3} (?:Client|Server) Error: [\w ]{1,60}"
                r"|HTTP Error \d{3}: [\w ]{1,60}|Max retries exceeded with url)",
            )
        },
    ),
    "DDJ222": JobCause(
        name="stale-file-handle",
        title="A file on NFS was replaced or deleted while {who} used it[: {path}]",
        domain="host",
        restart="on the same nodes",
        finds="A call ends with “Stale file handle”.",
        why="Another rank or job replaced the file, often in a cache that all nodes share.",
        remedies=(
            remedy("Prepare the file once before the ranks start, and only read it in the job"),
            remedy(
                "Or use a separate cache on a local disk of each node",
                settings=(setting("HF_HOME", "/tmp/hf"), setting("TRITON_CACHE_DIR", "/tmp/triton")),
            ),
        ),
        next_check="ls -l the file on each node, and mount | grep nfs",
        references=("errno(3): ESTALE",),
        signs={"stale-handle": Sign("Stale file handle", r"Stale file handle(?:: ['\"](?P<path>[^'\"]+))?")},
    ),
    "DDJ223": host_cause(
        name="disk-quota",
        title="The disk quota of the job's user is used up on {who}[: {path}]",
        finds="A write fails with “Disk quota exceeded”.",
        why="The file system limits the space or the number of files of each user, and df may still show free space.",
        remedies=(
            on_node("Delete files, or write to a file system with a larger quota", "quota -s", "lfs quota -h ."),
            remedy(
                "Move the caches of torch and Triton from a small home",
                settings=(setting("XDG_CACHE_HOME", "/scratch/cache"),),
            ),
        ),
        next_check="quota -s on the rank's host, for the space and for the number of files",
        references=("errno(3): EDQUOT",),
        signs={"quota-used-up": Sign("Disk quota exceeded", r"Disk quota exceeded(?:: ['\"](?P<path>[^'\"]+))?")},
    ),
    "DDJ224": network_cause(
        name="mpirun-lost-daemon",
        title="mpirun lost contact with its daemon[ on {node}]",
        finds="Open MPI reports that it has lost communication with a remote daemon.",
        why="The host or pod stopped, its daemon was killed, or the connection was cut. The lines before this message"
        " often show why.",
        remedies=(
            on_node("Find out why the host's processes ended", "dmesg -T | tail -50", "journalctl -k --since -1h"),
            remedy("In Kubernetes, see why the pod ended", "kubectl describe pod POD", "kubectl logs --previous POD"),
            remedy("Restart without that host", "mpirun --host NODE:8,NODE:8 -np 16 python train.py"),
        ),
        next_check="the output above the message, and ping and ssh to that host",
        references=("Open MPI help-errmgr-base.txt (node-died)",),
        signs={
            "node-lost-by-mpirun": launcher.sign(
                "has lost communication with a remote daemon",
                r"(?s)lost communication with a remote daemon(?:.*?Remote daemon:\s+\S+ on node (?P<node>\S+))?",
                lines=8,
            )
        },
    ),
    "DDJ225": scheduler_cause(
        name="pod-not-started",
        title="A pod of the job did not start[: {reason}]",
        finds="Kubernetes reports that a container waits or keeps failing.",
        why="An init container waits for the master's pod or service, the image cannot be pulled, or the container ends"
        " as soon as it starts.",
        remedies=(
            remedy("See what the pod waits for", "kubectl describe pod POD", "kubectl logs POD --all-containers"),
            remedy("Check that the master's pod runs and has a service", "kubectl get pods,services"),
        ),
        next_check="kubectl get events --sort-by=.lastTimestamp",
        references=("Kubernetes pkg/kubelet/images, pkg/kubelet/kuberuntime",),
        signs={
            "pod-waits": launcher.sign(
                (
                    "is waiting to start: ",
                    "Back-off restarting failed container",
                    "ErrImagePull",
                    "ImagePullBackOff",
                    "CrashLoopBackOff",
                ),
                r"(?P<reason>(?<=is waiting to start: )\w+|Back-off restarting failed container(?: \S+)?"
                r"|ErrImagePull|ImagePullBackOff|CrashLoopBackOff)",
            )
        },
    ),
}
