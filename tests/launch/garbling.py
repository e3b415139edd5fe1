"""``ddp-doctor run`` on a node whose results cannot be read: ``python -m tests.launch.garbling run …``."""

from unittest.mock import patch

from ddp_doctor.__main__ import main
from ddp_doctor.agents.store_client import StoreClient
from ddp_doctor.model.base import Json

JUNK = [{"check": "connectivity", "status": "collected", "node": 0, "fact": {"kind": "\x1b[2J"}}]
put = StoreClient.put


def put_junk(client: StoreClient, key: str, value: Json) -> None:
    put(client, key, JUNK if key.startswith(("between/", "result/")) else value)


if __name__ == "__main__":
    with patch.object(StoreClient, "put", put_junk):
        main()
