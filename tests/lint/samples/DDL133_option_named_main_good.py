import torch.distributed as dist


def run_first(function, post=None, run_post_on_main=False):
    if dist.get_rank() == 0:
        function()
    dist.barrier()
    if post is not None and not run_post_on_main:
        post()
        dist.barrier()
