"""The pydantic base of everything that is recorded or reported."""

from typing import Any

from pydantic import BaseModel, ConfigDict

#: A JSON value. Recursive aliases confuse pydantic schemas, and every use is validated later.
Json = Any


class Frozen(BaseModel):
    """An immutable value; unknown fields of a newer minor schema are dropped, not fatal."""

    model_config = ConfigDict(frozen=True, extra="ignore")
