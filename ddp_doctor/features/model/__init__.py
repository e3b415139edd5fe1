"""model: the user's own model. Its parts are checks of ``run --model`` and the command ``fit``.

user_model/ runs it in DDP or fully_shard, compile/ captures it with torch.compile, and fit/ estimates its memory. What
``run`` gets of them is in in_run.py.
"""
