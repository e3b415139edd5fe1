"""A small training job for each framework, with a fault in rank 1: ``python job.py FRAMEWORK FAULT``.

It is run with the frameworks installed (`make launchers`), so it is not type-checked.
"""

import os
import signal
import sys
import time

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset

STEPS = {"ends": 30}
FAULT_STEP, FAULT_RANK = 5, 1


class Data(Dataset):
    """Numbered rows, which stop coming on one rank."""

    def __init__(self, fault, rank):
        self.fault, self.rank = fault, rank

    def __len__(self):
        few = self.fault == "uneven batches" and self.rank == FAULT_RANK
        return 4 * (FAULT_STEP if few else STEPS.get(self.fault, 1_000_000))

    def __getitem__(self, at):
        if self.fault == "loader stalls" and self.rank == FAULT_RANK and at >= 4 * FAULT_STEP:
            sys.stdout.write("the fault begins\n")
            sys.stdout.flush()
            time.sleep(10_000)
        return torch.full((8,), float(at % 7))


def batches(fault, rank):
    """Return the loader of a rank; only the fault of the loader needs workers."""
    return DataLoader(Data(fault, rank), batch_size=4, num_workers=int(fault == "loader stalls"))


def misbehave(fault, rank, step):
    """Cause the fault on one rank in one step."""
    time.sleep(0.01)
    if rank != FAULT_RANK or step != FAULT_STEP:
        return
    sys.stdout.write("the fault begins\n")
    sys.stdout.flush()
    if fault == "raises":
        raise ValueError("bad batch 5")
    if fault == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if fault == "sleeps":
        time.sleep(10_000)
    if fault == "memory":
        torch.empty(1 << 60)
    while fault == "loops":
        pass


def plain(fault):
    """Train under torchrun, srun, mpirun or DeepSpeed's launcher."""
    for name, others in (
        ("RANK", ("OMPI_COMM_WORLD_RANK", "SLURM_PROCID")),
        ("WORLD_SIZE", ("OMPI_COMM_WORLD_SIZE", "SLURM_NTASKS")),
    ):
        for other in others:
            if other in os.environ:
                os.environ.setdefault(name, os.environ[other])
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    dist.init_process_group("gloo")
    train(fault)


def spawned(rank, fault):
    """Train as a process of mp.spawn."""
    address = f"tcp://127.0.0.1:{os.environ['MASTER_PORT']}"
    dist.init_process_group("gloo", init_method=address, rank=rank, world_size=3)
    train(fault)


def train(fault):
    """Train with DDP until the data ends."""
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    steps(fault, dist.get_rank(), torch.Tensor.backward, model, optimizer)
    dist.barrier()
    dist.destroy_process_group()


def steps(fault, rank, backward, model, optimizer):
    """Train until the data ends, or until the fault."""
    for step, batch in enumerate(batches(fault, rank)):
        misbehave(fault, rank, step)
        backward(model(batch).mean())
        optimizer.step()
        optimizer.zero_grad()


def fabric(fault):
    """Train with Lightning Fabric, which starts the other ranks."""
    import lightning

    fabric = lightning.Fabric(accelerator="cpu", devices=3, strategy="ddp")
    fabric.launch()
    model = torch.nn.Linear(8, 1)
    model, optimizer = fabric.setup(model, torch.optim.SGD(model.parameters(), lr=0.1))
    steps(fault, fabric.global_rank, fabric.backward, model, optimizer)
    fabric.barrier()


def lightning_trainer(fault):
    """Train with Lightning's Trainer, which starts the other ranks."""
    import lightning

    class Model(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(8, 1)

        def train_dataloader(self):
            return batches(fault, self.global_rank)

        def training_step(self, batch, step):
            misbehave(fault, self.global_rank, step)
            return self.layer(batch).mean()

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1)

    lightning.Trainer(
        accelerator="cpu", devices=3, strategy="ddp", max_epochs=1, logger=False, enable_checkpointing=False,
        use_distributed_sampler=False,
    ).fit(Model())  # fmt: skip


def hf_trainer(fault):
    """Train with the Trainer of transformers, below torchrun."""
    import tempfile

    from transformers import Trainer, TrainingArguments

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer, self.step = torch.nn.Linear(8, 1), 0

        def forward(self, rows):
            misbehave(fault, dist.get_rank(), self.step)
            self.step += 1
            return {"loss": self.layer(rows).mean()}

    def rows(items):
        return {"rows": torch.stack(items)}

    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            folder, use_cpu=True, max_steps=STEPS.get(fault, 1_000_000), per_device_train_batch_size=4,
            save_strategy="no", report_to=[], remove_unused_columns=False, disable_tqdm=True,
            dataloader_num_workers=int(fault == "loader stalls"),
        )  # fmt: skip
        rank = int(os.environ["RANK"])
        Trainer(Model(), arguments, data_collator=rows, train_dataset=Data(fault, rank)).train()


def accelerated(fault):
    """Train with accelerate, below `accelerate launch`."""
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    model = torch.nn.Linear(8, 1)
    model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    steps(fault, accelerator.process_index, accelerator.backward, model, optimizer)
    accelerator.wait_for_everyone()


def ray_loop(config):
    """Train in one worker of Ray Train."""
    train(config["fault"])


def ray_train(fault):
    """Train with Ray Train's TorchTrainer."""
    import ray
    from ray.train import ScalingConfig
    from ray.train.torch import TorchTrainer

    ray.init(num_cpus=2 if fault == "node missing" else 6, include_dashboard=False)
    TorchTrainer(
        ray_loop, train_loop_config={"fault": fault}, scaling_config=ScalingConfig(num_workers=3)
    ).fit()  # fmt: skip


def mp_spawn(fault):
    """Train below torch.multiprocessing.spawn."""
    torch.multiprocessing.spawn(spawned, args=(fault,), nprocs=3)


JOBS = {
    "plain": plain,
    "mp.spawn": mp_spawn,
    "fabric": fabric,
    "lightning": lightning_trainer,
    "transformers": hf_trainer,
    "accelerate": accelerated,
    "ray": ray_train,
}

if __name__ == "__main__":
    torch.set_num_threads(1)
    words = [word for word in sys.argv[1:] if not word.startswith("--local_rank")]  # DeepSpeed adds it
    JOBS[words[0]](words[1])
