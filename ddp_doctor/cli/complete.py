"""Shell completion: the script for each shell, and the suggested words.

A shell asks by starting ddp-doctor with ``_DDP_DOCTOR_COMPLETE=complete_bash``; typer answers.
"""

import os
from collections.abc import Iterable

from ddp_doctor.model.choices import UsageError
from ddp_doctor.model.error_text import expected, quoted

_VARIABLE = "_DDP_DOCTOR_COMPLETE"
_SHELLS = ("bash", "zsh", "fish")


def script(shell: str | None) -> str:
    """Return the script that a shell reads once or at each start. Raises UsageError for an unknown shell."""
    from typer.completion import get_completion_script  # type: ignore[attr-defined]  # it is not in __all__

    shell = shell or os.environ.get("SHELL", "").rpartition("/")[2]
    _require_known(shell)
    text: str = get_completion_script(prog_name="ddp-doctor", complete_var=_VARIABLE, shell=shell)
    return text


def prepare() -> None:
    """Let typer answer a shell that requests words; otherwise do nothing."""
    asked = os.environ.get(_VARIABLE)
    if asked is None:
        return
    from typer.completion import completion_init  # type: ignore[attr-defined]  # nor this

    from ddp_doctor.cli.error_handler import error_handler

    with error_handler():
        _require_known(asked.removeprefix("complete_"))
    completion_init()


def _require_known(shell: str) -> None:
    if shell not in _SHELLS:
        raise UsageError(f"no completion for shell {quoted(shell)}: {expected(shell, _SHELLS)}")


def names_of_checks(incomplete: str) -> list[str]:
    """Return the checks, after the names already typed: ``p2p,all``."""
    from ddp_doctor.checks import CHECKS

    return _after_comma(incomplete, (check.id for check in CHECKS))


def collectives(incomplete: str) -> list[str]:
    """Return the collectives, after the names already typed."""
    from ddp_doctor.knowledge.collectives import TABLE

    return _after_comma(incomplete, TABLE)


def codes(incomplete: str) -> list[str]:
    """Return the codes of all rules, after the codes already typed."""
    return _after_comma(incomplete, _codes())


def words_to_explain(incomplete: str) -> list[str]:
    """Return the matching checks, codes of rules, and environment variables."""
    from ddp_doctor.settings.table import variables

    words = [word for word in (*_codes(), *variables()) if word.startswith(incomplete.upper())]
    return [*(name for name in names_of_checks(incomplete) if "," not in name), *words]


def names_of_schemas(incomplete: str) -> list[str]:
    """Return the matching names of JSON schemas."""
    from ddp_doctor.cli.schemas import SCHEMAS

    return [name for name in SCHEMAS if name.startswith(incomplete)]


def names_of_templates(incomplete: str) -> list[str]:
    """Return the matching names of templates."""
    from ddp_doctor import templates

    return [name for name in templates.TEMPLATES if name.startswith(incomplete)]


def forms_of_settings(incomplete: str) -> list[str]:
    """Return the forms that --settings writes, each with the colon before the path."""
    from ddp_doctor.cli.outputs import FORMS

    return [f"{output.name}:" for output in FORMS if f"{output.name}:".startswith(incomplete)]


def _codes() -> list[str]:
    from ddp_doctor.engine.diagnose import all_rules
    from ddp_doctor.features import loadable

    of_features = (rule for feature in loadable().values() for rule in feature.rules())
    return [*dict.fromkeys(rule.code for rule in (*all_rules(), *of_features))]


def _after_comma(incomplete: str, words: Iterable[str]) -> list[str]:
    before, comma, begun = incomplete.rpartition(",")
    return [f"{before}{comma}{word}" for word in words if word.startswith(begun)]
