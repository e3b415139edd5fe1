"""model: the user's own model. It provides checks of ``run --model`` and the command ``fit``.

user_model/ runs it in DDP or fully_shard, compile/ captures it with torch.compile, and fit/ estimates its memory.
in_run.py holds what ``run`` uses of them.
"""
