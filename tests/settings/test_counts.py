"""The requests of a job script, compared with its settings and commands."""

import pytest

from ddp_doctor import app
from ddp_doctor.app import UsageError
from ddp_doctor.cli import commands
from ddp_doctor.cli.outputs import Outputs
from ddp_doctor.model.finding import Finding

FOUR = "#!/bin/bash\n#SBATCH --nodes=4\n#SBATCH --ntasks-per-node=1\n#SBATCH --gres=gpu:8\n"
EIGHT = "#!/bin/bash\n#SBATCH -N 4 --ntasks-per-node=8 --gres=gpu:8\n"
LO = "export NCCL_SOCKET_IFNAME=lo\n"
TRAIN = "srun torchrun --nnodes=4 --nproc-per-node=8 --rdzv-endpoint=$HEAD:29500 train.py\n"


def found(script: str, *codes: str) -> list[Finding]:
    return [each for each in app.read_settings(script).report.findings if each.code in codes]


LOOPBACK = {
    "lo alone": f"#!/bin/bash\n#SBATCH --nodes=4\n{LO}",
    "lo and torchrun": FOUR + LO + TRAIN,
    "lo, of gloo": FOUR + "export GLOO_SOCKET_IFNAME=lo\n" + TRAIN,
    "exactly lo": FOUR + "export NCCL_SOCKET_IFNAME==lo\n" + TRAIN,
    "lo for srun alone": f"{FOUR}srun --export=ALL,NCCL_SOCKET_IFNAME=lo python train.py\n",
    "lo in front of srun": f"{FOUR}NCCL_SOCKET_IFNAME=lo srun python train.py\n",
    "lo in a shell": f"{FOUR}srun bash -c 'export NCCL_SOCKET_IFNAME=lo; python train.py'\n",
    "-N 4": f"#!/bin/bash\n#SBATCH -N 4\n{LO}srun python train.py\n",
    "-N4": f"#!/bin/bash\n#SBATCH -N4\n{LO}srun python train.py\n",
    "srun's nodes": f"#!/bin/bash\n{LO}srun -N 2 -n 16 python train.py\n",
    "a variable of nodes": f"#!/bin/bash\nNNODES=2\n{LO}srun --nodes=$NNODES python train.py\n",
    "mpirun": "#!/bin/bash\nexport NCCL_SOCKET_IFNAME=lo\nmpirun -np 16 -N 8 python train.py\n",
    "torchrun's nodes": f"#!/bin/bash\n{LO}torchrun --nnodes 2 --node_rank $R --master_addr $M train.py\n",
    "localhost": FOUR + "export MASTER_ADDR=localhost\nsrun python train.py\n",
    "127.0.0.1": FOUR + "export MASTER_ADDR=127.0.0.1\nsrun python train.py\n",
    "torchrun at localhost": FOUR + "srun torchrun --nnodes=4 --rdzv_endpoint=localhost:29500 train.py\n",
    "torchrun's own address": FOUR + "srun torchrun --nnodes 4 --master_addr 127.0.0.1 train.py\n",
    "the later of two values": f"#!/bin/bash\nN=1\nN=4\n{LO}srun -N $N python x.py\n",
    "a script": FOUR + LO + "srun bash train.sh\n",
    "options of more words": FOUR + LO + "srun -l --cpu-bind none --mpi=pmix python train.py\n",
    "CRLF": (FOUR + LO + TRAIN).replace("\n", "\r\n"),
}


@pytest.mark.parametrize("script", LOOPBACK.values(), ids=LOOPBACK)
def test_the_loopback_interface_is_an_error_in_a_job_of_several_nodes(script: str):
    (finding,) = found(script, "DD127")

    assert finding.severity.value == "error"


ONE_JOB = "#!/bin/bash\n#SBATCH --nodes=1\n#SBATCH --gpus-per-node=8\n"
HEALTHY = {
    "one node with lo": f"{ONE_JOB}{LO}torchrun --standalone --nproc-per-node=8 train.py\n",
    "one node by default": f"#!/bin/bash\n#SBATCH --gres=gpu:8\n{LO}srun python train.py\n",
    "one to four nodes": f"#!/bin/bash\n#SBATCH --nodes=1-4\n{LO}srun python train.py\n",
    "overwritten later": f"{FOUR}{LO}export NCCL_SOCKET_IFNAME=ib0\n{TRAIN}",
    "unset later": f"{FOUR}{LO}unset NCCL_SOCKET_IFNAME\n{TRAIN}",
    "lo for a test on one node": f"{FOUR}NCCL_SOCKET_IFNAME=lo srun -N1 -n1 python test.py\n{TRAIN}",
    "lo for another command": f"{FOUR}NCCL_SOCKET_IFNAME=lo python test.py\n{TRAIN}",
    "by the branch": f"{FOUR}if [ -n $X ]; then\nexport NCCL_SOCKET_IFNAME=lo\nfi\n{TRAIN}",
    "not exported": f"{FOUR}NCCL_SOCKET_IFNAME=lo\n{TRAIN}",
    "not lo": f"{FOUR}export NCCL_SOCKET_IFNAME=^lo,docker\n{TRAIN}",
    "lo and more": f"{FOUR}export NCCL_SOCKET_IFNAME=lo1\n{TRAIN}",
    "a head that is looked up": f"{FOUR}export MASTER_ADDR=$(hostname)\n{TRAIN}",
    "localhost under torchrun": f"{FOUR}export MASTER_ADDR=localhost\n{TRAIN}",
    "only hostname": f"{FOUR}export MASTER_ADDR=localhost\nsrun -N1 -n1 hostname\ntorchrun --nproc-per-node 8 x.py\n",
    "one task a node": f"{FOUR}srun --ntasks-per-node=1 torchrun --nnodes=4 --nproc-per-node=8 train.py\n",
    "counts of variables": f"{FOUR}srun torchrun --nnodes=$SLURM_NNODES --nproc-per-node=$SLURM_GPUS_ON_NODE x.py\n",
    "a node rank each": f"{FOUR}for n in $NODES; do srun -N1 -n1 torchrun --nnodes=4 --node-rank=$i x.py & done\n",
    "two torchruns a node": "#!/bin/bash\n#SBATCH -N 2 --ntasks-per-node=2 --gpus-per-task=4\n"
    "srun torchrun --nnodes=4 --nproc-per-node=4 x.py\n",
    "elastic": f"{FOUR}srun torchrun --nnodes=1:4 --nproc-per-node=8 x.py\n",
    "as many as GPUs": f"{FOUR}srun torchrun --nnodes=4 --nproc-per-node=gpu x.py\n",
    "a rank a task": "#!/bin/bash\n#SBATCH -N 4 -n 32 --gpus-per-node=8\nexport MASTER_ADDR=$H\nsrun python x.py\n",
    "tasks of srun": "#!/bin/bash\n#SBATCH -N 4 --ntasks-per-node=8 --gres=gpu:a100:8\n"
    "srun -n 4 --ntasks-per-node=1 torchrun --nnodes=4 --nproc-per-node=8 x.py\n",
    "preparing data": "#!/bin/bash\n#SBATCH -N 1 --ntasks-per-node=64 --gres=gpu:1\nsrun python prepare.py\n",
    "GPUs of the whole job": f"#!/bin/bash\n#SBATCH -N 4 --gpus=32\n{TRAIN}",
    "several parts": f"#!/bin/bash\n#SBATCH -N 2 --gres=gpu:1\n#SBATCH hetjob\n#SBATCH -N 4\n{LO}srun true\n",
    "a line that SLURM passes over": f"#!/bin/bash\n##SBATCH --nodes=4\n{LO}srun python x.py\n",
    "behind the first command": f"#!/bin/bash\nset -e\n#SBATCH --nodes=4\n{LO}srun python x.py\n",
    "options of the program": f"{FOUR}srun torchrun --nnodes=4 --nproc-per-node=8 x.py --nnodes 9 --nproc-per-node 9\n",
}


@pytest.mark.parametrize("script", HEALTHY.values(), ids=HEALTHY)
def test_a_script_with_consistent_counts_has_no_findings(script: str):
    script = script.replace("torchrun --", "torchrun --rdzv-backend=c10d --rdzv-endpoint=$H:1 --")

    assert [each.title for each in found(script, "DD127", "DD128")] == []


def asked(ranks: int, gpus: int) -> str:
    return f"{ranks} ranks start on each node, but the job requests {gpus} GPUs per node"


def started(torchruns: int, does: str, nnodes: int) -> str:
    return f"{torchruns} torchruns start, but --nnodes={nnodes} {does} {nnodes}"


TWO = FOUR.replace("4", "2", 1)
ERRORS = {
    "8 tasks of 8 ranks": (EIGHT + "srun torchrun --nproc_per_node=8 x.py\n", asked(64, 8)),
    "32 torchruns of 4": (EIGHT + "srun torchrun --nnodes=4 --nproc_per_node=8 x.py\n", started(32, "takes", 4)),
    "more nodes than the job": (TWO + "srun torchrun --nnodes=4 --nproc-per-node=8 x.py\n", started(2, "waits for", 4)),
    "fewer nodes than the job": (FOUR + "srun torchrun --nnodes=2 --nproc-per-node=8 x.py\n", started(4, "takes", 2)),
    "torchrun without srun": (
        TWO + "torchrun --nnodes=4 --nproc-per-node=8 x.py\n",
        "torchrun waits for 4 nodes, but the job has 2",
    ),
    "more ranks than GPUs": (
        "#!/bin/bash\n#SBATCH -N 1 --gres=gpu:4\ntorchrun --standalone --nproc-per-node=8 x.py\n",
        asked(8, 4),
    ),
    "by the module": (
        "#!/bin/bash\n#SBATCH -N 1 --gpus-per-node=h100:4\npython3 -m torch.distributed.run --nproc-per-node 8 x.py\n",
        asked(8, 4),
    ),
    "by a variable": ("#!/bin/bash\n#SBATCH -N 1 -G 4\nGPUS=8\ntorchrun --nproc-per-node $GPUS x.py\n", asked(8, 4)),
    "in a shell": (EIGHT + "srun bash -c 'torchrun --nproc_per_node=8 x.py'\n", asked(64, 8)),
    "in a variable": (EIGHT + 'CMD="torchrun --nproc_per_node=8 x.py"\nsrun $CMD\n', asked(64, 8)),
    "over lines": (
        TWO + "srun \\\n  torchrun \\\n  --nnodes=4 \\\n  --nproc-per-node=8 x.py\n",
        started(2, "waits for", 4),
    ),
}
WARNINGS = {
    "each node alone": (
        f"{FOUR}srun torchrun --standalone --nproc-per-node=8 train.py\n",
        "4 separate jobs start: each node runs its own torchrun",
    ),
    "no GPUs asked": (
        "#!/bin/bash\n#SBATCH -N 4\n#SBATCH --ntasks-per-node=8\nsrun torchrun --nproc-per-node 8 x.py\n",
        "64 ranks start on each node: 8 tasks of 8 ranks",
    ),
    "tasks above GPUs": (
        "#!/bin/bash\n#SBATCH -N 2 --ntasks-per-node=8 --gres=gpu:4\nexport MASTER_ADDR=n0\nsrun python x.py\n",
        asked(8, 4),
    ),
}
WRONG = {name: (*row, "error") for name, row in ERRORS.items()}
WRONG |= {name: (*row, "warning") for name, row in WARNINGS.items()}


@pytest.mark.parametrize(("script", "title", "severity"), WRONG.values(), ids=WRONG)
def test_contradictory_counts_in_a_script_are_reported(script: str, title: str, severity: str):
    (finding,) = found(script, "DD128")

    assert (finding.code, finding.title, finding.severity.value) == ("DD128", title, severity)


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
@pytest.mark.parametrize("line_end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("at_the_end", ["\n", ""])
def test_a_script_is_read_in_any_encoding_and_with_any_line_ends(tmp_path, encoding, line_end, at_the_end):
    text = (FOUR + LO + "srun python x.py" + at_the_end).replace("\n", line_end)
    (tmp_path / "job.sh").write_bytes(text.encode(encoding))

    assert commands.env(str(tmp_path / "job.sh"), Outputs()) == 1


@pytest.mark.parametrize("content", [b"", b"\n \n", bytes(range(256)) * 40, b"\0" * 100, b"\xff\xfe"])
def test_input_other_than_a_script_is_unsure(tmp_path, content):
    (tmp_path / "job.sh").write_bytes(content)

    assert commands.env(str(tmp_path / "job.sh"), Outputs()) == 3


def test_a_directory_is_rejected(tmp_path):
    with pytest.raises(UsageError, match="Is a directory"):
        commands.env(str(tmp_path), Outputs())


POD = """apiVersion: kubeflow.org/v1
kind: PyTorchJob
spec:
  nprocPerNode: "{ranks}"
  pytorchReplicaSpecs:
    Master:
      replicas: 1
      template: &pod
        spec:
          containers:
          - name: pytorch
            env:
            - name: NCCL_SOCKET_IFNAME
              value: {interface}
            resources:
              limits:
                nvidia.com/gpu: 8
    Worker:
      replicas: {workers}
      template: *pod
"""


@pytest.mark.parametrize(
    ("ranks", "interface", "workers", "codes"),
    [
        (8, "lo", 3, ["DD127"]),
        (16, "eth0", 3, ["DD128"]),
        (8, "eth0", 3, []),
        (8, "lo", 0, []),
        ("auto", "eth0", 3, []),
    ],
)
def test_a_training_operators_job_is_compared_with_its_pods(ranks, interface, workers, codes):
    script = POD.format(ranks=ranks, interface=interface, workers=workers)

    assert [each.code for each in found(script, "DD127", "DD128")] == codes
