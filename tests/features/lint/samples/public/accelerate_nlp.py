"""Structure of huggingface/accelerate examples/nlp_example.py: Accelerator.prepare wraps model, optimizer and loaders; it shards
loaders that shuffle, moves batches and does what DistributedSampler and DDP do elsewhere."""

import argparse

import evaluate
import torch
from accelerate import Accelerator
from datasets import load_dataset
from torch.optim import AdamW
from torch.utils.data import DataLoader
from transformers import AutoModelForSequenceClassification, AutoTokenizer, get_linear_schedule_with_warmup, set_seed

BIGGEST_BATCH = 16


def loaders(accelerator, batch):
    tokenizer = AutoTokenizer.from_pretrained("bert-base-cased")
    pairs = load_dataset("glue", "mrpc")

    def tokens(examples):
        return tokenizer(examples["sentence1"], examples["sentence2"], truncation=True, max_length=None)

    with accelerator.main_process_first():
        tokenized = pairs.map(tokens, batched=True, remove_columns=["idx", "sentence1", "sentence2"])
    tokenized = tokenized.rename_column("label", "labels")

    def collate(examples):
        return tokenizer.pad(examples, padding="longest", return_tensors="pt")

    train = DataLoader(tokenized["train"], shuffle=True, collate_fn=collate, batch_size=batch, drop_last=True)
    held_out = DataLoader(tokenized["validation"], shuffle=False, collate_fn=collate, batch_size=32)
    return train, held_out


def training_function(config, args):
    accelerator = Accelerator(cpu=args.cpu, mixed_precision=args.mixed_precision)
    metric = evaluate.load("glue", "mrpc")
    batch, accumulate = config["batch"], 1
    if batch > BIGGEST_BATCH:
        accumulate, batch = batch // BIGGEST_BATCH, BIGGEST_BATCH
    set_seed(config["seed"])
    train, held_out = loaders(accelerator, batch)
    model = AutoModelForSequenceClassification.from_pretrained("bert-base-cased", return_dict=True)
    model = model.to(accelerator.device)
    optimizer = AdamW(params=model.parameters(), lr=config["lr"])
    schedule = get_linear_schedule_with_warmup(optimizer, 100, len(train) * config["epochs"] // accumulate)
    model, optimizer, train, held_out, schedule = accelerator.prepare(model, optimizer, train, held_out, schedule)

    for epoch in range(config["epochs"]):
        model.train()
        for step, batch in enumerate(train):
            batch.to(accelerator.device)
            loss = model(**batch).loss / accumulate
            accelerator.backward(loss)
            if step % accumulate == 0:
                optimizer.step()
                schedule.step()
                optimizer.zero_grad()
        model.eval()
        for batch in held_out:
            batch.to(accelerator.device)
            with torch.no_grad():
                outputs = model(**batch)
            predictions, references = accelerator.gather_for_metrics((outputs.logits.argmax(dim=-1), batch["labels"]))
            metric.add_batch(predictions=predictions, references=references)
        accelerator.print(f"epoch {epoch}:", metric.compute())
    accelerator.wait_for_everyone()
    accelerator.save(accelerator.unwrap_model(model).state_dict(), "weights.pt")
    accelerator.end_training()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--mixed_precision", default=None, choices=["no", "fp16", "bf16"])
    parser.add_argument("--cpu", action="store_true")
    training_function({"lr": 2e-5, "epochs": 3, "seed": 42, "batch": 16}, parser.parse_args())
