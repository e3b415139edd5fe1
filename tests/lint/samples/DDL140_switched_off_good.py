import torch


def scaler_for(name):
    dtype = {"float16": torch.float16, "bfloat16": torch.bfloat16}[name]
    scaler = torch.amp.GradScaler("cuda", enabled=(name == "float16"))
    return torch.autocast("cuda", dtype=dtype), scaler
