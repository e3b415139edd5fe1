"""Launches in job scripts, manifests and launchers' configurations: faults are found, correct ones pass."""

import json
import posixpath
from collections.abc import Mapping
from types import MappingProxyType

import pytest

from ddp_doctor import app
from ddp_doctor.facts.node.env_vars import SettingText
from ddp_doctor.parse.yaml_text import read_yaml

FOUR = "#!/bin/bash\n#SBATCH --nodes=4\n#SBATCH --ntasks-per-node=1\n#SBATCH --gpus-per-node=8\n"
HEAD = 'HEAD=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)\nexport HEAD\n'
MEET = "--rdzv-backend=c10d --rdzv-endpoint=$HEAD:29500"
STATIC = "--master-addr=$HEAD --master-port=29500"
BY_NAME = "--master-addr=n0 --master-port=29500"
ON_TWO = "torchrun --nnodes=2 --nproc-per-node=8"
ON_FOUR = "torchrun --nnodes=4 --nproc-per-node=8"


def pods(command: str, kind: str = "PyTorchJob", workers: int = 3) -> str:
    container = f"{{containers: [{{name: c, command: {command}, resources: {{limits: {{nvidia.com/gpu: 8}}}}}}]}}"
    template = f"template: {{spec: {container}}}"
    if kind == "Job":
        return f"apiVersion: batch/v1\nkind: Job\nspec:\n  completionMode: Indexed\n  completions: 4\n  {template}\n"
    return (
        f"apiVersion: kubeflow.org/v1\nkind: {kind}\nspec:\n  pytorchReplicaSpecs:\n"
        f"    Master: {{replicas: 1, {template}}}\n    Worker: {{replicas: {workers}, {template}}}\n"
    )


#: The code of the finding, E or W for its severity, and the text.
BROKEN = {
    "no endpoint": f"DD127 E {FOUR}srun {ON_FOUR} train.py",
    "localhost in a variable": f"DD127 E {FOUR}H=localhost; srun {ON_FOUR} --rdzv_endpoint=$H:1 train.py",
    "localhost in an array": f'DD127 E {FOUR}A+=(--rdzv_endpoint=localhost:1); srun {ON_FOUR} "${{A[@]}}" train.py',
    "localhost by default": f"DD127 W {FOUR}srun {ON_FOUR} --rdzv-endpoint=${{H:-localhost}}:1 x.py",
    "localhost after ||": f"DD127 W {FOUR}HEAD=$(scontrol show hostnames || echo localhost)\nsrun {ON_FOUR} {MEET} x",
    "a list of steps only": f"DD127 E {FOUR}H=$(scontrol show hostnames ${{SLURM_STEP_NODELIST:-localhost}})\n"
    f"srun {ON_FOUR} --rdzv-backend=c10d --rdzv-endpoint=$H:1 x.py",
    "each node's name": f'DD127 E {FOUR}srun bash -c "{ON_FOUR} --rdzv_endpoint=\\$(hostname):1 x.py"',
    "each node's name in a file": f"DD127 E {FOUR}cat > r.sh <<'E'\n{ON_FOUR} --node-rank=$SLURM_NODEID"
    " --master-addr=`hostname` x.py\nE\nsrun bash r.sh",
    "an address of /etc/hosts": f"DD127 W {FOUR}HEAD=$(hostname --ip-address)\nsrun {ON_FOUR} {MEET} x.py",
    "an address that c10d ignores": f"DD127 E {FOUR}{HEAD}srun {ON_FOUR} --rdzv-backend=c10d {STATIC} x.py",
    "several nodes, maybe": "DD127 W #!/bin/bash\ntorchrun --nnodes=$N --nproc-per-node=8 x.py",
    "a function's address": f"DD127 E {FOUR}f() {{ echo localhost; }}\nsrun {ON_FOUR} --rdzv-endpoint=$(f):1 x.py",
    "the last node": f"DD129 E {FOUR}H=$(scontrol show hostnames $SLURM_NODELIST | tail -n 1)\nsrun bash -c"
    f' "{ON_FOUR} --node-rank=\\$SLURM_NODEID --master-addr=$H x.py"',
    "a port of each node": f"DD129 E {FOUR}{HEAD}srun bash -c '{ON_FOUR} {MEET[:-5]}$((29500 + SLURM_NODEID)) x.py'",
    "an ID of each node": f"DD129 E {FOUR}{HEAD}srun bash -c '{ON_FOUR} --rdzv-id=$RANDOM {MEET} x.py'",
    "a port of each rank": f"DD129 E {FOUR}{HEAD}srun bash -c 'export MASTER_ADDR=$HEAD"
    " MASTER_PORT=$(shuf -i 20000-30000 -n 1); python x.py'",
    "a rank expanded once": f"DD131 E {FOUR}{HEAD}srun {ON_FOUR} --node_rank=$SLURM_NODEID {STATIC} x.py",
    "a rank in a variable": f'DD131 E {FOUR}{HEAD}R=$SLURM_PROCID; srun bash -c "{ON_FOUR} --node_rank=$R {STATIC} x"',
    "a number for all": f"DD131 E {FOUR}{HEAD}srun {ON_FOUR} --node_rank=0 {STATIC} x.py",
    "no rank": f"DD131 E {FOUR}{HEAD}srun uv run {ON_FOUR} --rdzv-endpoint=$HEAD:1 x.py",
    "the rank on the node": f"DD131 E {FOUR}{HEAD}srun bash -c '{ON_FOUR} --node_rank=$SLURM_LOCALID {STATIC} x.py'",
    "a network of the container": f"DD127 E docker run --gpus all img {ON_TWO} --node-rank=$1 {BY_NAME} x.py",
    "one after another": f'DD128 E #!/bin/bash\nfor i in 0 1; do ssh n$i "{ON_TWO} --node-rank=$i {BY_NAME} x"; done',
    "by functions": f'DD128 E #!/bin/bash\nf() {{ ssh $1 "{ON_TWO} --node-rank=$2 {BY_NAME} x"; }}\nf n0 0\nf n1 1',
    "RANK for all tasks": f"DD131 W {FOUR}export MASTER_ADDR=n0 RANK=$SLURM_PROCID\nsrun python x.py",
    "one rank over ssh": 'DD131 E for h in a b; do ssh $h "torchrun --nnodes=2 --node_rank=0 --master_addr=a x" & done',
    "a rank without a shell": "DD131 E "
    + pods('[torchrun, --nnodes=4, "--node_rank=$RANK", --master_addr=j-0.j, x.py]', "Job"),
    "one rank in all pods": "DD131 E " + pods("[torchrun, --node_rank=0, x.py]"),
    "an older operator": "DD131 W " + pods("[python, -m, torch.distributed.launch, --nnodes=4, x.py]"),
    "no srun": f"DD128 E {FOUR}{HEAD}{ON_FOUR} {MEET} x.py",
    "srun on one node": f"DD128 E {FOUR}{HEAD}srun -N1 -n1 {ON_FOUR} {MEET} x.py",
    "a job on each node": f"DD128 W {FOUR}srun torchrun --nproc-per-node=8 x.py",
    "deepspeed on each node": f"DD128 W {FOUR}srun deepspeed --num_gpus 8 x.py",
    "one machine": f"DD128 E {FOUR}srun accelerate launch --num_machines 1 --num_processes 8 x.py",
    "one machine rank in a file": f"DD131 E {FOUR}cat > a.yaml <<E\nnum_machines: 4\nmachine_rank: 0\n"
    "main_process_ip: n0\nE\nsrun accelerate launch --config_file a.yaml x.py",
    "two of four pods": "DD128 E " + pods("[torchrun, --nnodes=2, x.py]"),
    "mpirun": f"DD128 E mpirun -np 16 --map-by ppr:8:node torchrun --nnodes=2 --nproc_per_node=8 {MEET} x.py",
    "a torchrun for each GPU": f"DD128 E mpirun -np 16 -H a:8,b:8 torchrun --nnodes 2 --nproc_per_node 8 {MEET} x.py",
    "standalone": f"DD132 E {FOUR}srun {ON_FOUR} --standalone x.py",
    "a space after the backslash": f"DD132 E {FOUR}{HEAD}srun torchrun --nnodes=4 \\ \n  {MEET} x.py",
    "a comment after the backslash": f"DD132 E torchrun --nnodes=2 \\ # two nodes\n  --node-rank=0 {STATIC} \\\n  x.py",
    "a comment between options": f"DD132 E torchrun --nnodes=2 \\\n  --node-rank=0 \\\n  # the head\n  {STATIC} x.py",
    "no backslash": f"DD132 E {FOUR}{HEAD}srun accelerate launch --num_machines 4\n  --num_processes 32 x.py",
    "a slash for a backslash": f"DD132 E torchrun --nnodes=2 --node-rank=0 {STATIC} /\n  /home/me/x.py",
    "a misspelt option": f"DD132 E torchrun --nnodes=2 --node-rank=0 --rdzc_backend=c10d {STATIC} x.py",
    "another misspelt option": f"DD132 E {FOUR}{HEAD}srun torchrun --nnodes=4 --nproc-per-nod3=8 {MEET} x.py",
    "an interpreter for a script": f"DD132 E {FOUR}{HEAD}srun {ON_FOUR} {MEET} python x.py",
    "a port above the range": "DD132 E torchrun --nnodes=2 --node-rank=0 --master-addr=a --master-port=69420 x.py",
    "accelerate's port": "DD133 E num_machines: 2\nnum_processes: 16\nmain_process_ip: n0\nmain_process_port: 99999\n",
    "a port for an address": "DD133 E num_machines: 2\nnum_processes: 16\nmain_process_ip: 2333\n",
    "fewer devices than ranks": "DD128 E CUDA_VISIBLE_DEVICES=1,2 python -m torch.distributed.run --nproc_per_node=4 x",
    "exported devices": "DD128 E #!/bin/bash\nexport CUDA_VISIBLE_DEVICES=0\ntorchrun --nproc-per-node=2 x.py",
    "one rank for eight GPUs": f"DD128 W {FOUR}{HEAD}srun torchrun --nnodes=4 --nproc-per-node=1 {MEET} x.py",
    "one rank a task": f"DD128 W {FOUR}{HEAD}srun torchrun --nnodes=4 {MEET} --nproc-per-node=$SLURM_NTASKS_PER_NODE x",
    "python without srun": "DD128 W #!/bin/bash\n#SBATCH -N 2\n#SBATCH --ntasks-per-node=4 --gpus=8\npython train.py",
    "a node rank that is too large": f"DD128 E torchrun --nnodes=2 --node-rank=2 {STATIC} x.py",
    "the second of one node": f"DD128 E torchrun --nnodes=1 --node_rank=1 {STATIC} x.py",
    "one task, not one for each GPU": "DD128 W #!/bin/bash\n#SBATCH -N 1\n#SBATCH --ntasks=1 --ntasks-per-node=2\n"
    "#SBATCH --gres=gpu:2\nsrun python x.py",
    "two tasks on two nodes": "DD128 W #!/bin/bash\n#SBATCH -N 2 -n 2\n#SBATCH --tasks-per-node=2\nsrun python x.py",
    "a variable for SLURM": "DD128 E #!/bin/bash\n#SBATCH --nodes=$N\n#SBATCH --gpus-per-node=8\nsrun python x.py",
    "one GPU for all tasks": "DD131 W #!/bin/bash\n#SBATCH -N 4 --ntasks-per-node=8\nexport MASTER_ADDR=n0"
    " CUDA_VISIBLE_DEVICES=$SLURM_LOCALID\nsrun python x.py",
    "two torchruns with the same GPUs": f"DD128 E {FOUR.replace('node=1', 'node=2')}{HEAD}srun torchrun --nnodes=8"
    f" --nproc-per-node=4 {MEET} x.py",
    "an option that sbatch does not have": f"DD132 E #!/bin/bash\n#SBATCH --constraints=gpu\n{FOUR[12:]}{HEAD}"
    f"srun {ON_FOUR} {MEET} x.py",
    "an ambiguous option of sbatch": f"DD132 E #!/bin/bash\n#SBATCH --node=4\n{FOUR[12:]}{HEAD}srun {ON_FOUR} {MEET} x",
    "GPUs of PBS": "DD128 E #!/bin/bash\n#PBS -l select=1:ngpus=4\ntorchrun --standalone --nproc-per-node=8 x.py",
    "more ranks than GPUs of LSF": "DD128 E #!/bin/bash\n#BSUB -n 8\n#BSUB -R span[hosts=1]\n#BSUB -gpu num=2\n"
    "torchrun --nproc-per-node=4 x.py",
    "jsrun and localhost": "DD127 E #!/bin/bash\n#BSUB -nnodes 2\njsrun -n 2 -r 1 -a 1 -g 6 torchrun --nnodes=2"
    " --nproc-per-node=6 --rdzv-backend=c10d --rdzv-endpoint=localhost:1 x.py",
    "flux without an endpoint": f"DD127 E #!/bin/bash\nflux run -N 2 -n 2 {ON_TWO} x.py",
    "a misspelt directive": f"DD132 W #!/bin/bash\n#SABTCH --time=1:0:0\n{FOUR[12:]}{HEAD}srun {ON_FOUR} {MEET} x.py",
    "a directive after a command": f"DD132 W {FOUR}{HEAD}#SBATCH --time=1:0:0\nsrun {ON_FOUR} {MEET} x.py",
    "a PBS job on its first host": "DD128 E #!/bin/bash\n#PBS -l select=2:ncpus=8:ngpus=4\ntorchrun --nnodes=2"
    " --nproc-per-node=4 --rdzv-backend=c10d --rdzv-endpoint=$(head -1 $PBS_NODEFILE):1 x.py",
    "an LSF job with one node rank": f"DD131 E #!/bin/bash\n#BSUB -n 8\n#BSUB -R span[ptile=4]\n"
    f"blaunch -z n0 {ON_TWO} --node-rank=0 {BY_NAME} x.py",
    "two addresses": f"DD129 E {ON_TWO} --node-rank=0 --master-addr=10.0.0.1 --master-port=1 x.py\n"
    f"{ON_TWO} --node-rank=1 --master-addr=10.0.0.2 --master-port=1 x.py",
    "two ports": f"DD129 E ssh n0 '{ON_TWO} --node-rank=0 --master-addr=n0 --master-port=1 x' &\n"
    f"ssh n1 '{ON_TWO} --node-rank=1 --master-addr=n0 --master-port=2 x'",
    "a name without $": f"DD132 E {FOUR}srun bash -c '{ON_FOUR} --node-rank=$SLURM_NODEID --master-addr=MASTER_ADDR"
    " --master-port=1 x.py'",
    "the head first": f"DD128 E {ON_TWO} --node-rank=0 {BY_NAME} x\nssh n1 '{ON_TWO} --node-rank=1 {BY_NAME} x'",
    "accelerate without an address": f"DD127 W {FOUR}srun bash -c 'accelerate launch --num_machines 4"
    " --num_processes 32 --machine_rank $SLURM_NODEID x.py'",
    "one local rank for all tasks": f"DD131 W {FOUR.replace('node=1', 'node=8')}export MASTER_ADDR=n0\n"
    "L=$SLURM_LOCALID\nexport LOCAL_RANK=$L\nsrun python x.py",
    "a user in the address": f"DD127 E {FOUR}srun torchrun --nnodes=4 --rdzv-backend=c10d --rdzv-endpoint=me@n0:1 x.py",
    "a URL": f"DD127 E {FOUR}srun bash -c '{ON_FOUR} --node-rank=$SLURM_NODEID --master-addr=tcp://n0 x.py'",
    "standalone with a node rank": "DD132 W torchrun --standalone --nnodes=$N --node_rank=$R --master_addr=$A x.py",
    "wrapped by sbatch": 'DD127 E sbatch --nodes=4 --ntasks-per-node=1 --wrap "srun torchrun --nnodes=4 x.py"',
    "wrapped by sbatch, with =": "DD128 W sbatch -N4 --ntasks-per-node=1 --wrap='srun torchrun x.py'",
    "accelerate's file": "DD133 W num_machines: 2\nmachine_rank: 0\nnum_processes: 16\n",
    "one process for two machines": "DD133 E num_machines: 2\nnum_processes: 1\nmachine_rank: 0\n",
    "processes that machines cannot share": "DD133 W num_machines: 2\nnum_processes: 7\nmachine_rank: 0\n",
    "more processes than GPUs": "DD133 E num_machines: 2\nnum_processes: 10\ngpu_ids: 0,1\nmachine_rank: 1\n",
    "processes that two machines cannot share": "DD133 W accelerate launch --num_machines 2 --num_processes 3"
    " --machine_rank 0 --main_process_ip n0 x.py",
    "a user in accelerate's address": "DD133 E num_machines: 2\nnum_processes: 4\nmain_process_ip: me@10.0.0.1\n",
    "a job in a wrapper": "DD127 E kind: AppWrapper\napiVersion: codeflare.dev/v1\nspec:\n  components:\n"
    "  - template:\n      apiVersion: batch/v1\n      kind: Job\n      spec:\n        completions: 4\n"
    "        completionMode: Indexed\n        template: {spec: {containers: [{command: [torchrun, --nnodes=4, x]}]}}\n",
    "accelerate's own address": "DD133 W num_machines: 2\nnum_processes: 4\nmain_process_ip: 127.0.0.1\n",
    "each host's own name": f"DD127 E for h in a b; do ssh me@$h {ON_TWO} --master-addr=$h --node-rank=$r x & done",
    "hosts of mpirun": "DD127 E mpirun -np 16 -H a:8,b:8 -x MASTER_ADDR=localhost python x.py",
    "localhost of DeepSpeed": "DD127 E deepspeed --num_nodes=2 --master_addr=localhost x.py",
    "any address": f"DD127 E {FOUR}srun {ON_FOUR} --rdzv-endpoint=0.0.0.0:1 x.py",
    "another pod": "DD129 W "
    + pods(f"[{', '.join(ON_FOUR.split())}, --node-rank=$(JOB_COMPLETION_INDEX), --master-addr=j-0-1.j, x]", "Job"),
    "an address that expands early": f"DD132 E sbatch <<E\n{FOUR}{HEAD}srun {ON_FOUR} {MEET} x.py\nE\n",
    "a number that expands early": f"DD132 E cat <<E | sbatch\n{FOUR}srun torchrun --nnodes=$SLURM_NNODES {MEET} x\nE",
    "two precisions": 'DD133 E {"train_batch_size": 8, "fp16": {"enabled": true}, "bf16": {"enabled": true}}',
}


def read(text: str, files: Mapping[str, str] = MappingProxyType({})) -> tuple[dict[str, str], SettingText, int]:
    """Return the worst severity by code, the text that was read, and the exit code."""
    outcome = app.read_settings(text, read_file=lambda name: files.get(posixpath.normpath(name)))
    found = {each.code: each.severity.value[0].upper() for each in reversed(outcome.report.findings)}
    text_read = outcome.recording.first(SettingText)
    assert text_read is not None
    return {code: severity for code, severity in found.items() if severity != "I"}, text_read, outcome.report.exit_code


RIGHT = {
    "the head from an array": f"{FOUR}N=( $(scontrol show hostnames) )\nsrun {ON_FOUR} --rdzv-backend=c10d"
    " --rdzv-endpoint=${N[0]}:1 x.py",
    "a list of lines": f"{FOUR}mapfile -t N < <(scontrol show hostnames)\nsrun {ON_FOUR} --rdzv-backend=c10d"
    ' --rdzv-endpoint="${N[0]}":1 x.py',
    "the batch host": f"{FOUR}export HEAD=$(hostname) P=$((RANDOM + 1024))\nsrun bash -c '{ON_FOUR}"
    " --node-rank=$SLURM_NODEID --master-addr=$HEAD --master-port=$P x.py'",
    "an array": f'{FOUR}{HEAD}A=(--nnodes=$SLURM_NNODES)\nA+=({MEET})\nsrun torchrun "${{A[@]}}" --nproc_per_node=8 x',
    "GPUs by task": "#!/bin/bash\n#SBATCH -N 2 --ntasks-per-node=2 --gpus-per-task=4\n"
    f"{HEAD}srun torchrun --nnodes=4 --nproc-per-node=4 {MEET} x.py",
    "options of a plug-in": f"{FOUR}#SBATCH --nvmps --container-image=i.sqsh\n{HEAD}srun {ON_FOUR} {MEET} x.py",
    "directives in another script": f"{FOUR}{HEAD}cat > j.sh <<E\n#SBATCH --time=1\nE\nsrun {ON_FOUR} {MEET} x.py",
    "a PBS job on all hosts": "#!/bin/bash\n#PBS -l select=2:ncpus=8:ngpus=4\nH=$(head -1 $PBS_NODEFILE)\n"
    "pbsdsh -- torchrun --nnodes=2 --nproc-per-node=4 --rdzv-backend=c10d --rdzv-endpoint=$H:1 x.py",
    "an LSF job on all hosts": '#!/bin/bash\n#BSUB -n 8\n#BSUB -R "span[ptile=4]"\nP=$(python3 free.py)\n'
    'blaunch -z "$L" torchrun --nnodes=2 --nproc-per-node=4 --rdzv-backend=c10d --rdzv-endpoint=$HOSTNAME:$P x.py',
    "the devices of a task": f"{FOUR}{HEAD}export CUDA_VISIBLE_DEVICES=$SLURM_LOCALID\nsrun {ON_FOUR} {MEET} x.py",
    "one address on two lines": f"{ON_TWO} --node-rank=0 {BY_NAME} x.py\n{ON_TWO} --node-rank=1 {BY_NAME} x.py",
    "a shell's arguments": f"{FOUR}{HEAD}srun bash -c -- '{ON_FOUR} {MEET} x.py'",
    "the network of the host": f"docker run --net host img {ON_TWO} --node-rank=$1 {BY_NAME} x.py",
    "hosts in the background": f'#!/bin/bash\nfor i in 0 1; do ssh n$i "{ON_TWO} --node-rank=$i {BY_NAME} x" & done',
    "a background on each host": f'#!/bin/bash\nfor i in 0 1; do ssh n$i "{ON_TWO} --node-rank=$i {BY_NAME} x &"; done',
    "the head in the foreground": f"#!/bin/bash\nssh -f n1 '{ON_TWO} --node-rank=1 {BY_NAME} x'\n"
    f"{ON_TWO} --node-rank=0 {BY_NAME} x",
    "a loop with branches": "#!/bin/bash\nfor i in 0 1; do\nif [ $i = 1 ]; then"
    f" ssh n1 '{ON_TWO} --node-rank=1 {BY_NAME} x'; else ssh n0 '{ON_TWO} --node-rank=0 {BY_NAME} x' & fi\ndone",
    "a function": f"{FOUR}{HEAD}run() {{\n  srun {ON_FOUR} {MEET} $1\n}}\nrun x.py",
    "a container": f"{FOUR}{HEAD}srun apptainer exec --nv i.sif {ON_FOUR} {MEET} x.py",
    "a container's shell": f"{FOUR}{HEAD}srun --container-image=i.sqsh bash -lc 'exec {ON_FOUR} {MEET} x.py'",
    "a here-document": f"{FOUR}{HEAD}srun bash <<'E'\n{ON_FOUR} --node-rank=$SLURM_PROCID {STATIC} x.py\nE",
    "over ssh": 'H=(a b)\nfor i in ${!H[@]}; do\n  ssh ${H[$i]} "torchrun --nnodes=2 --node_rank=$i'
    ' --master_addr=${H[0]} x.py" &\ndone',
    "a counter": 'r=0; for h in a b; do ssh $h "torchrun --nnodes=2 --node_rank=$r --master_addr=a x" & ((r++)); done',
    "a C loop": f"{FOUR}{HEAD}for ((i=0; i<4; i++)); do srun -N1 -w n$i {ON_FOUR} --node_rank=$i {STATIC} x & done",
    "a subshell in a sum": f'{FOUR}{HEAD}srun bash -c "{ON_FOUR} --rdzv-conf=is_host=\\$(((N)) && echo 0) {MEET} x"',
    "by hand": "torchrun --nnodes=${N:-1} --node_rank=${R:-0} --master_addr=${H:-localhost} x.py",
    "a pod of several": "kind: Pod\nspec: {containers: [{command: [torchrun, --nnodes=2, --rdzv-endpoint=a:1, x.py]}]}",
    "one node": "#!/bin/bash\n#SBATCH -N 1\ntorchrun --standalone --nproc_per_node=8 x.py",
    "a branch for one node": f"{FOUR}{HEAD}if [ $A ]; then torchrun --standalone x; else srun {ON_FOUR} {MEET} x; fi",
    "an array of jobs": "#!/bin/bash\n#SBATCH --nodes=1 --gpus-per-node=8\n#SBATCH --array=0-3\n"
    f"{ON_FOUR} --node_rank=$SLURM_ARRAY_TASK_ID --master_addr=n0 x.py",
    "accelerate": f'{FOUR}{HEAD}srun bash -c "accelerate launch --num_machines 4 --num_processes 32'
    ' --machine_rank \\$SLURM_NODEID --main_process_ip $HEAD --main_process_port 1 x.py"',
    "deepspeed": "deepspeed --hostfile h --num_nodes 2 --num_gpus 8 x.py",
    "ranks of srun": f"{FOUR}export MASTER_ADDR=$(hostname)\nsrun bash -c 'RANK=$SLURM_PROCID python x.py'",
    "mpirun": "mpirun -np 2 -npernode 1 bash -c 'torchrun --nnodes=2 --node_rank=$PMIX_RANK --master_addr=a x'",
    "a program that starts no ranks": f"{FOUR}mpirun -np 32 ./all_reduce_perf -g 1",
    "the operator's values": pods("[torchrun, x.py]"),
    "the operator's values in a shell": pods(
        '[sh, -c, "torchrun --nnodes=4 --node_rank=$RANK --master_addr=$MASTER_ADDR x.py"]'
    ),
    "an index": pods('[torchrun, --nnodes=4, "--node_rank=$(JOB_COMPLETION_INDEX)", --master_addr=j-0.j, x.py]', "Job"),
    "a train job": "kind: TrainJob\nspec: {trainer: {numNodes: 4, numProcPerNode: 8, command: [torchrun, x.py]}}\n",
    "CRLF": f"{FOUR}{HEAD}srun {ON_FOUR} {MEET} \\\n  x.py\n".replace("\n", "\r\n"),
    "accelerate's file for pdsh": "num_machines: 2\nmachine_rank: 0\nnum_processes: 16\ngpu_ids: all\n"
    "deepspeed_config: {deepspeed_multinode_launcher: pdsh}\n",
    "an ID from an annotation": "kind: Job\napiVersion: batch/v1\nspec: {completions: 2, template: {spec: {containers: "
    "[{env: [{name: ID, valueFrom: {fieldRef: {fieldPath: \"metadata.annotations['a-name']\"}}}, {name: R, valueFrom: "
    "{fieldRef: {fieldPath: \"metadata.annotations['batch.kubernetes.io/job-completion-index']\"}}}], command: "
    '[torchrun, --nnodes=2, "--node-rank=$(R)", --rdzv-id=$(ID), --master-addr=j-0.j, x.py]}]}}}\n',
    "a placeholder": "torchrun --nnodes=2 --node-rank=<RANK> --rdzv-endpoint=<HEAD_IP>:29500 x.py",
    "placeholders in quotes": 'torchrun --nnodes="<N>" --node-rank=0 --master-addr="<ip of node 0>" x.py',
    "input and output": f"{FOUR}{HEAD}srun {ON_FOUR} {MEET} x.py <in >out",
    "a negative number as an argument": f"{FOUR}{HEAD}srun {ON_FOUR} {MEET} \\\n  x.py --lr \\\n  -1",
    "a list of markdown": "#!/bin/bash\ncat <<E\n- torchrun\n--nnodes=2\nE\ntorchrun x.py",
    "ranks of tasks": f"{FOUR.replace('node=1', 'node=8')}export MASTER_ADDR=n0\nsrun bash -c"
    " 'CUDA_VISIBLE_DEVICES=$SLURM_LOCALID LOCAL_RANK=$SLURM_LOCALID python x.py'",
    "as many tasks as nodes times tasks": f"{FOUR.replace('node=1', 'node=8')}#SBATCH -n 32\nexport MASTER_ADDR=n0\n"
    "srun python x.py",
    "fewer tasks by srun": f"{FOUR.replace('node=1', 'node=8')}srun -N1 -n1 python prepare.py\nexport MASTER_ADDR=n0\n"
    "srun python x.py",
    "a side step": f"{FOUR}{HEAD}axolotl preprocess a.yml\nray stop\nsrun {ON_FOUR} {MEET} x.py",
    "wrapped by sbatch": 'sbatch --nodes=1 --gpus-per-node=8 --wrap "torchrun --standalone --nproc-per-node=8 x.py"',
    "words in the lines for SLURM": "#!/bin/bash\n#SBATCH -A { my account }\n#SBATCH -N 1 --gpus-per-node=8\n"
    'srun bash -c "torchrun --nnodes $SLURM_NNODES --node_rank $SLURM_PROCID --master_addr=a --nproc-per-node=8 x"',
    "an option that is cut short": f"{FOUR}{HEAD}srun torchrun --nnodes=4 --nproc-per-n=8 {MEET} --max_res=3 x.py",
    "an option of another release": f"{FOUR}{HEAD}srun torchrun --nnodes=4 --nproc-per-node=8 {MEET} --shiny=1 x.py",
    "a program that is no script": f"{FOUR}{HEAD}srun {ON_FOUR} {MEET} --no-python python x.py",
    "all devices": "#!/bin/bash\nexport CUDA_VISIBLE_DEVICES=0,1,2,3\ntorchrun --standalone --nproc-per-node=2 x.py",
    "options of Open MPI": "mpirun -np 64 -bind-to none -map-by slot -x NCCL_DEBUG=WARN -mca pml ob1 python x.py",
    "python before srun": f"{FOUR}{HEAD}python download.py\nsrun {ON_FOUR} {MEET} x.py",
    "the first host of a loop": 'for h in a b; do [ -z "$M" ] && M=$h\n'
    f"ssh $h {ON_TWO} --master-addr=$M --node-rank=$r x.py & r=$((r + 1)); done",
    "localhost on one node only": f"{FOUR}{HEAD}[[ $SLURM_NNODES == 1 ]] && HEAD=localhost\nsrun {ON_FOUR} {MEET} x.py",
    "mpirun on one host": "mpirun -np 8 -H a:8,b:8 -x MASTER_ADDR=localhost python x.py",
    "one host of DeepSpeed": "deepspeed --num_nodes=1 --master_addr=localhost x.py",
    "the first pod": pods(f"[bash, -c, '{ON_FOUR} --node-rank=$JOB_COMPLETION_INDEX --master-addr=j-0-0.j x']", "Job"),
    "an ID that expands early": f"sbatch <<E\n{FOUR}srun {ON_FOUR} --rdzv-id=$SLURM_JOB_ID {MEET} x.py\nE\n",
    "names that expand later": "sbatch <<E\n" + f"{FOUR}{HEAD}srun {ON_FOUR} {MEET} x.py".replace("$", "\\$") + "\nE\n",
    "a document for ssh": f"for i in 0 1; do ssh n$i bash -s <<E &\n{ON_TWO} --node-rank=$i {BY_NAME} x.py\nE\ndone\n",
    "python on one node": "#!/bin/bash\n#SBATCH --nodes=1 --gpus-per-node=8\npython train.py",
    "one GPU for each rank": f"{FOUR.replace('=8', '=1')}{HEAD}srun torchrun --nnodes=4 --nproc-per-node=1 {MEET} x",
    "only variables": "#!/bin/bash\nexport NCCL_DEBUG=WARN",
}


HOSTS = "#!/bin/bash\n#SBATCH --nodelist=n[1-2]\n#SBATCH --ntasks-per-node=1 --gpus-per-node=8\n"
#: The files next to a script, by name.
FILES = {
    "run.sh": f'{ON_FOUR} --rdzv-backend=c10d --rdzv-endpoint=$HEAD:29500 "$@"',
    "static.sh": f"{ON_FOUR} {STATIC} --node-rank=$1 x.py",
    "job.sbatch": f"{FOUR}srun {ON_FOUR} {MEET} x.py",
    "env.sh": "export HEAD=localhost",
    "again.sh": "bash again.sh; . again.sh",
    "accelerate.yaml": "num_machines: 4\nmachine_rank: 1\nmain_process_ip: n0\n",
    "two": "# hosts\nn1 slots=8\nn2 slots=4\n",
    "no-slots": "n1 slots=8\nn2\n",
    "twice": "n1 slots=8\nn1 slots=8\n",
    "empty": "# none\n",
}
WITH_FILES = {
    "an included address": f"DD127 E {FOUR}source ./env.sh\nsrun {ON_FOUR} {MEET} x.py",
    "a script with a usual subcommand": f"DD128 E {FOUR.replace('4', '2')}{HEAD}srun ./run.sh export",
    "a script with another number of nodes": f"DD128 E {FOUR.replace('4', '2')}{HEAD}srun bash run.sh x.py",
    "a script in the folder of this one": f'DD127 E {FOUR}export HEAD=localhost\nsrun "$(dirname "$0")/run.sh" x.py',
    "an argument that the script gets": f"DD131 E {FOUR}{HEAD}srun bash static.sh $SLURM_NODEID",
    "a job that is submitted": "DD127 E export HEAD=localhost\nfor i in 1 2; do sbatch --export=ALL job.sbatch; done",
    "accelerate's file": f"DD131 E {FOUR}srun accelerate launch --config_file accelerate.yaml x.py",
    "localhost with a file of hosts": "DD127 E mpirun -np 9 --hostfile two -x MASTER_ADDR=localhost python x.py",
    "localhost of DeepSpeed": "DD127 E deepspeed --hostfile two --master_addr=127.0.0.1 x.py",
    "fewer hosts": "DD133 E deepspeed --hostfile two --num_nodes 3 x.py",
    "fewer slots": "DD133 W deepspeed --hostfile=two --num_gpus=8 x.py",
    "a slot too many": "DD133 E deepspeed --hostfile two --include=n1:0,1@n2:2,4 x.py",
    "another host": "DD133 E deepspeed --hostfile two --include n3:0 x.py",
    "a host without slots": "DD133 E deepspeed --hostfile no-slots x.py",
    "a host twice": "DD133 E deepspeed --hostfile twice x.py",
    "no host": "DD133 E deepspeed --hostfile empty x.py",
    "a host outside the job": f"DD129 E {HOSTS}srun {ON_TWO} --rdzv-backend=c10d --rdzv-endpoint=n3.lan:1 x.py",
    "not the first host": f"DD129 E {HOSTS}srun bash -c '{ON_TWO} --node-rank=$SLURM_NODEID --master-addr=n2 x.py'",
}


@pytest.mark.parametrize("row", [*BROKEN.values(), *WITH_FILES.values()], ids=[*BROKEN, *WITH_FILES])
def test_a_broken_launch_is_found(row: str):
    code, severity, text = row.split(" ", 2)

    assert read(text, FILES)[0].get(code) == severity


RIGHT_WITH_FILES = {
    "the head of the job": f"{FOUR}{HEAD}srun bash run.sh x.py",
    "a number that each node expands": f"{FOUR}{HEAD}srun bash -c './static.sh $SLURM_NODEID'",
    "hosts and slots of the file": "deepspeed --hostfile two --include=n1@n2:0,3 x.py",
    "hosts of a variable": "deepspeed --hostfile two --include=$HOSTS x.py",
    "as many hosts": "deepspeed --hostfile two --num_nodes 2 --num_gpus 4 x.py",
    "hosts added": "for h in $H; do echo $h slots=8 >> two; done\ndeepspeed --hostfile two --num_nodes 4 x.py",
    "another network's name": f"{HOSTS}srun {ON_TWO} --rdzv-backend=c10d --rdzv-endpoint=n1-ib:1 x.py",
    "any host with c10d": f"{HOSTS}srun {ON_TWO} --rdzv-backend=c10d --rdzv-endpoint=n2:1 x.py",
    "more nodes": f"{HOSTS}#SBATCH -N 3\nsrun torchrun --nnodes=3 --rdzv-backend=c10d --rdzv-endpoint=n3:1 x.py",
    "a script that runs itself": "#!/bin/bash\nbash again.sh",
}


@pytest.mark.parametrize("text", [*RIGHT.values(), *RIGHT_WITH_FILES.values()], ids=[*RIGHT, *RIGHT_WITH_FILES])
def test_a_correct_launch_is_healthy(text: str):
    found, text_read, code = read(text, FILES)

    assert (found, text_read.unchecked, code) == ({}, (), 0)


UNCHECKED = {
    "another launcher below srun": f"{FOUR}srun -n1 horovodrun -np 8 -H localhost:8 python x.py",
    "another launcher behind variables": "export A=b\nCUDA_VISIBLE_DEVICES=0,1 horovodrun -np 2 python x.py",
    "an unknown program with a usual subcommand": f"{FOUR}srun trainer prepare",
    "a misspelt module": f"{FOUR}srun python -m torch.distribute.launch --nnodes=4 x.py",
    "a misspelt module behind variables": "NCCL_DEBUG=WARN A=b python3 -m torch.distribution.launch x.py",
    "a trainer of its own": "export NNODES=2 NODE_RANK=0\nswift sft --model m",
    "a job of a trainer": 'sbatch --nodes=2 --wrap "srun litgpt pretrain m"',
    "a script that is not here": f"{FOUR}srun bash train.sh",
    "options that nobody knows": f"{FOUR}srun torchrun $DIST_ARGS x.py",
    "options by the branch": f'{FOUR}A=(--nnodes=4)\nif [ $X ]; then A+=({MEET}); fi\nsrun torchrun "${{A[@]}}" x.py',
    "a launcher that is not followed": f"{FOUR}srun composer x.py",
    "a launcher in a variable": f"{FOUR}srun $LAUNCHER x.py",
    "accelerate's own configuration": f"{FOUR}srun accelerate launch x.py",
    "a quote that stays open": f'{FOUR}srun bash -c "torchrun --nnodes=4 x.py',
    "a file that nobody runs": f"{FOUR}cat > r.sh <<E\ntorchrun --nnodes=4 x.py\nE",
    "calls without an end": f"{FOUR}f() {{ f; f; }}\nf\nsrun {ON_FOUR} x.py",
}


@pytest.mark.parametrize("text", UNCHECKED.values(), ids=UNCHECKED)
def test_a_launch_that_was_not_understood_is_unsure_and_quoted(text: str):
    report = app.read_settings(text).report

    assert report.exit_code == 3
    assert "the launch line was not checked" in report.summary
    assert text.splitlines()[-1][:16] in report.summary or "torchrun" in report.summary


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (pods("null, args: [--epochs, 3]"), "the image's own command"),
        (f"{FOUR}srun bash -c '\n  deepspeed --num_nodes 2 x.py", "`srun bash -c '` (a quote"),
    ],
)
def test_a_launch_in_an_unread_file_is_unsure(text: str, words: str):
    report = app.read_settings(text).report

    assert (report.exit_code, words in str(report)) == (3, True)


BAD = {
    "an include": ("source env.sh", 5),
    "a quote": ('echo "open', 5),
    "a bracket": ("A=$(open", 5),
    "a loop of a template": ("{% for x in y %}", 5),
    "a long line": ("A=" + "x" * 40_000, 5),
}


@pytest.mark.parametrize(("line", "number"), BAD.values(), ids=BAD)
def test_the_certain_part_is_read_and_the_rest_is_listed(line: str, number: int):
    found, text_read, _ = read(f"{FOUR}{line}\nsrun {ON_FOUR} --rdzv-endpoint=localhost:1 x.py\n")

    assert found["DD127"] == "E"
    assert [each.line for each in text_read.unread] == [number]


@pytest.mark.parametrize(
    "lines",
    [
        "case $A in\n esac.\n a) b ;;\nesac",
        "case $A in\n a) b ;;\n esac:c) d ;;\nesac",
        "A=$(case $A in a) echo b ;; *) echo c ;; esac)",
        "(case $A in a) b ;; esac)",
        "(case $A in a) b ;; esac)& wait",
        "case $A in a) b ;; esac>log",
        "case $A in a) b ;; esac|cat",
        "f() { case $1 in esac-1) b ;; esac; }",
        "if (for i in 1 2; do b; done)& then c; fi",
        "(if b; then c; fi)||d",
    ],
)
def test_text_directly_after_a_block_does_not_hide_the_next_launch(lines: str):
    assert read(f"{FOUR}{lines}\nsrun {ON_FOUR} --rdzv-endpoint=localhost:1 x.py\n")[0]["DD127"] == "E"


@pytest.mark.fuzz
@pytest.mark.parametrize("line", ["if [ $A ]; then B=1; fi", "A{}=1", 'A="$A$A"', 'A=("${A[@]}" "${A[@]}" x)', "x $("])
def test_five_thousand_lines_are_followed(line: str):
    text = "".join(f"{line.format(at)}\n" if "{}" in line else f"{line}\n" for at in range(5000))

    assert read(f"{FOUR}{text}srun {ON_FOUR} --rdzv-endpoint=localhost:1 x.py\n")[2] in (1, 3)


def test_yaml_is_read_with_anchors_and_documents():
    text = 'a: &x {b: [1, "c: d"], e: f}\ng:\n- *x\n- <<: *x\n  e: h\ni: |\n  j\n   k\n  \nl: >-\n  m\n  n\n'
    text += "--- # o\np:\n- - q\nr: s\n  t\n}{\n"

    documents = read_yaml(text.split("\n"))

    inner = {"b": ["1", "c: d"], "e": "f"}
    assert json.loads(json.dumps(documents.read)) == [
        {"a": inner, "g": [inner, inner | {"e": "h"}], "i": "j\n k\n", "l": "m n"},
        {"p": [["q"]], "r": "s t"},
    ]
    assert documents.unread == [18]


@pytest.mark.parametrize("line", ["#SABTCH --export=HF_TOKEN={}", "#SBATCH --exports=HF_TOKEN={}"])
def test_credential_in_a_wrong_directive_is_not_shown(line: str):
    secret = "hf_" + "abcDEF123456" * 3
    outcome = app.read_settings(f"#!/bin/bash\n{line.format(secret)}\n{FOUR[12:]}srun {ON_FOUR} {MEET} x.py")

    assert "DD132" in [finding.code for finding in outcome.report.findings]
    assert secret not in outcome.recording.model_dump_json() + outcome.report.as_json()
