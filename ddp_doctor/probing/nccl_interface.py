"""What tells NCCL's choice of an interface beyond the environment: its files, and libnccl itself.

The answers of the helper script ``nccl_interface``; the files are probing/nccl_conf.py's::

    {"version_code": 22907, "address": "10.0.0.1"}
    {"version_code": 22907, "status": 5, "error": "Bootstrap : no socket interface found"}
    {"absent": "libnccl.so.2: cannot open shared object file: No such file or directory"}
"""

import json
from collections.abc import Sequence
from ipaddress import ip_address

from ddp_doctor.knowledge.network.interface_choice import Choice, holder
from ddp_doctor.model.context import CommandResult, Context, Interface
from ddp_doctor.probing.nccl_conf import conf_files
from ddp_doctor.settings.nccl_conf import set_by_files


def nccl_environment(ctx: Context) -> dict[str, str]:
    """The environment as NCCL sees it: the process's own, then the user's file, then the system's."""
    added = set_by_files(conf_files(ctx))
    return {**{name: value for name, (value, _) in added.items()}, **ctx.env}


def library_choice(answer: CommandResult, interfaces: Sequence[Interface]) -> Choice | None:
    """What libnccl chose; None where there is none, or where it could not be asked, as without a driver."""
    output = _last_object(answer.stdout)
    address, error = output.get("address"), output.get("error")
    if isinstance(address, str) and _is_address(address):
        why = "libnccl itself put it into its unique id"
        return Choice(interface=holder(interfaces, address), address=address, why=why)
    if isinstance(error, str) and "interface" in error:
        return Choice(why="libnccl itself says so", error=error)
    return None


def _is_address(text: str) -> bool:
    try:
        ip_address(text)
    except ValueError:
        return False
    return True


def _last_object(stdout: str) -> dict[str, object]:
    """The JSON object in the last line: NCCL_DEBUG prints before it."""
    lines = stdout.strip().splitlines()
    try:
        output = json.loads(lines[-1]) if lines else None
    except (ValueError, RecursionError):
        output = None
    return output if isinstance(output, dict) else {}
