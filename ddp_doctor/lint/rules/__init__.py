"""All lint rules in the order of their codes. A new rule is a function in a module of its topic, and a line here.

Each has samples in tests/lint/samples: ``DDL101_*_bad.py``, in which the comment ``# expect: DDL101`` stands on every
line that it reports, and ``DDL101_*_good.py``, in which nothing is reported.
"""

from ddp_doctor.lint.rule import LintRule
from ddp_doctor.lint.rules import devices, endpoint, every_rank, outdated, start_up, wrapping

RULES: tuple[LintRule, ...] = (
    wrapping.data_parallel,
    wrapping.wrapped_before_moved,
    wrapping.sync_batchnorm_after_wrapping,
    devices.gpu_hard_coded,
    devices.global_rank_as_device,
    devices.gpu_not_chosen,
    devices.gpu_chosen_late,
    start_up.process_group_missing,
    start_up.process_group_after_wrapping,
    start_up.process_group_left_open,
    devices.device_ids_disagree,
    start_up.local_rank_as_argument,
    outdated.cuda_amp_deprecated,
    start_up.setting_read_by_nothing,
    start_up.setting_too_late,
    devices.gloo_for_gpus,
    endpoint.gpus_of_one_node,
    endpoint.local_rank_as_rank,
    endpoint.endpoint_overwritten,
    every_rank.every_rank_downloads,
    every_rank.every_rank_logs,
    every_rank.memory_given_back,
    every_rank.forward_around,
)
