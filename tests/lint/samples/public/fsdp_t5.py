"""Structure of pytorch/examples distributed/FSDP/T5_training.py: FullyShardedDataParallel with a wrapping policy, samplers told
rank and world before the group exists, the full state gathered by all ranks and saved by the first."""

import argparse
import functools
import os

import torch
import torch.distributed as dist
import tqdm
from summaries import Summaries
from torch import optim
from torch.distributed.fsdp import FullStateDictConfig, MixedPrecision, StateDictType
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp.wrap import transformer_auto_wrap_policy
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler
from transformers import T5ForConditionalGeneration, T5Tokenizer
from transformers.models.t5.modeling_t5 import T5Block

BF16 = MixedPrecision(param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16, buffer_dtype=torch.bfloat16)


def train(model, rank, loader, optimizer, epoch, sampler):
    model.train()
    local_rank = int(os.environ["LOCAL_RANK"])
    totals = torch.zeros(2).to(local_rank)
    sampler.set_epoch(epoch)
    if rank == 0:
        bar = tqdm.tqdm(range(len(loader)), desc="train")
    for batch in loader:
        for key in batch:
            batch[key] = batch[key].to(local_rank)
        optimizer.zero_grad()
        output = model(input_ids=batch["source"], attention_mask=batch["mask"], labels=batch["target"])
        loss = output["loss"]
        loss.backward()
        optimizer.step()
        totals[0] += loss.item()
        totals[1] += len(batch)
        if rank == 0:
            bar.update(1)
    dist.all_reduce(totals, op=dist.ReduceOp.SUM)
    if rank == 0:
        bar.close()
        print(f"epoch {epoch}: {totals[0] / totals[1]:.4f}")


def validate(model, rank, loader):
    model.eval()
    local_rank = int(os.environ["LOCAL_RANK"])
    totals = torch.zeros(2).to(local_rank)
    with torch.no_grad():
        for batch in loader:
            for key in batch:
                batch[key] = batch[key].to(local_rank)
            output = model(input_ids=batch["source"], attention_mask=batch["mask"], labels=batch["target"])
            totals[0] += output["loss"].item()
            totals[1] += len(batch)
    dist.all_reduce(totals, op=dist.ReduceOp.SUM)
    return totals[0] / totals[1]


def main(args):
    model = T5ForConditionalGeneration.from_pretrained("t5-base")
    tokenizer = T5Tokenizer.from_pretrained("t5-base")
    local_rank = int(os.environ["LOCAL_RANK"])
    rank = int(os.environ["RANK"])
    world_size = int(os.environ["WORLD_SIZE"])
    train_set, val_set = Summaries(tokenizer, "train"), Summaries(tokenizer, "validation")
    train_sampler = DistributedSampler(train_set, rank=rank, num_replicas=world_size, shuffle=True)
    val_sampler = DistributedSampler(val_set, rank=rank, num_replicas=world_size)
    dist.init_process_group("nccl")

    train_options = {"batch_size": args.batch_size, "sampler": train_sampler}
    val_options = {"batch_size": args.batch_size, "sampler": val_sampler}
    both = {"num_workers": 2, "pin_memory": True, "shuffle": False}
    train_options.update(both)
    val_options.update(both)
    train_loader = DataLoader(train_set, **train_options)
    val_loader = DataLoader(val_set, **val_options)

    policy = functools.partial(transformer_auto_wrap_policy, transformer_layer_cls={T5Block})
    torch.cuda.set_device(local_rank)
    precision = BF16 if torch.cuda.is_bf16_supported() else None
    model = FSDP(model, auto_wrap_policy=policy, mixed_precision=precision, device_id=torch.cuda.current_device())
    optimizer = optim.AdamW(model.parameters(), lr=args.lr)
    schedule = optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.7)
    best = float("inf")
    for epoch in range(1, args.epochs + 1):
        train(model, rank, train_loader, optimizer, epoch, train_sampler)
        loss = validate(model, rank, val_loader)
        schedule.step()
        if rank == 0:
            print(f"epoch {epoch}: validation {loss:.4f}")
        if args.save_model and loss < best:
            full = FullStateDictConfig(offload_to_cpu=True, rank0_only=True)
            with FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT, full):
                state = model.state_dict()
            if rank == 0:
                torch.save(state, f"t5-{epoch}-{loss.item():.4f}.pt")
        best = min(best, loss)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="T5")
    parser.add_argument("--batch-size", type=int, default=4)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--lr", type=float, default=0.002)
    parser.add_argument("--save-model", action="store_true")
    torch.manual_seed(1)
    main(parser.parse_args())
