"""Structure of huggingface/transformers examples/pytorch/text-classification/run_glue.py: Trainer and TrainingArguments do all of
DDP; the script makes data sets, a collator and metrics, and asks who is first."""

import logging
import os
import sys
from dataclasses import dataclass, field

import evaluate
import numpy as np
from datasets import load_dataset
from transformers import (
    AutoConfig,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    DataCollatorWithPadding,
    HfArgumentParser,
    Trainer,
    TrainingArguments,
    set_seed,
)
from transformers.trainer_utils import get_last_checkpoint

logger = logging.getLogger(__name__)


@dataclass
class DataArguments:
    task: str = field(default="mrpc")
    length: int = field(default=128)
    most: int | None = field(default=None)


@dataclass
class ModelArguments:
    name: str = field(metadata={"help": "where the pretrained model stands"})


def main():
    parser = HfArgumentParser((ModelArguments, DataArguments, TrainingArguments))
    if len(sys.argv) == 2 and sys.argv[1].endswith(".json"):
        model_args, data_args, training_args = parser.parse_json_file(json_file=os.path.abspath(sys.argv[1]))
    else:
        model_args, data_args, training_args = parser.parse_args_into_dataclasses()
    logger.warning(
        "rank %s, device %s, GPUs %s, distributed %s",
        training_args.local_rank, training_args.device, training_args.n_gpu, training_args.local_rank != -1,
    )
    last = get_last_checkpoint(training_args.output_dir) if os.path.isdir(training_args.output_dir) else None
    set_seed(training_args.seed)
    raw = load_dataset("glue", data_args.task)
    labels = raw["train"].features["label"].names
    config = AutoConfig.from_pretrained(model_args.name, num_labels=len(labels), finetuning_task=data_args.task)
    tokenizer = AutoTokenizer.from_pretrained(model_args.name)
    model = AutoModelForSequenceClassification.from_pretrained(model_args.name, config=config)

    def tokens(examples):
        return tokenizer(examples["sentence1"], examples["sentence2"], max_length=data_args.length, truncation=True)

    with training_args.main_process_first(desc="tokenising"):
        raw = raw.map(tokens, batched=True)
    train_set, eval_set = raw["train"], raw["validation"]
    if data_args.most is not None:
        train_set = train_set.select(range(min(len(train_set), data_args.most)))
    metric = evaluate.load("glue", data_args.task)

    def compute_metrics(prediction):
        return metric.compute(predictions=np.argmax(prediction.predictions, axis=1), references=prediction.label_ids)

    trainer = Trainer(
        model=model,
        args=training_args,
        train_dataset=train_set if training_args.do_train else None,
        eval_dataset=eval_set if training_args.do_eval else None,
        compute_metrics=compute_metrics,
        data_collator=DataCollatorWithPadding(tokenizer, pad_to_multiple_of=8),
    )
    if training_args.do_train:
        result = trainer.train(resume_from_checkpoint=training_args.resume_from_checkpoint or last)
        trainer.save_model()
        trainer.log_metrics("train", result.metrics)
        trainer.save_metrics("train", result.metrics)
        trainer.save_state()
    if training_args.do_eval:
        metrics = trainer.evaluate(eval_dataset=eval_set)
        trainer.log_metrics("eval", metrics)
    if trainer.is_world_process_zero():
        tokenizer.save_pretrained(training_args.output_dir)


if __name__ == "__main__":
    main()
