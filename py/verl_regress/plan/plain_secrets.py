"""Refuses secrets that a request has as plain text, which the job's files, Ray's dashboard and debug bundles would show."""

import re

from verl_regress.base.errors import BadInput, shown
from verl_regress.plan.overrides import Override
from verl_regress.plan.request import Request

# NAME=VALUE, where the name says that the value is a secret: a key has at least 8 characters. Hydra has keys that end so, but name columns
# (data.prompt_key) or count tokens.
_VARIABLE = re.compile(
    r"(?:(?:\w*_)?(?:KEY|TOKEN)|\w*APIKEY)=.{8}|\w*(?:SECRET|PASSWORD|PASSWD)=.{4}", re.IGNORECASE | re.DOTALL
)
_HYDRA_KEY = re.compile(
    r"(?:\w*_)?(?:(?:api|access|secret|private)_?key|(?:api|access|auth|bearer|hf|wandb)_token)=[^$].{7}"
    r"|(?:\w*_)?(?:secret|password)=[^$].{3}"
)
# What a value says: the forms of Hugging Face, OpenAI and others, GitHub, GitLab, AWS, Slack, Google, wandb, JWT and PEM; a URL's password.
_VALUE = re.compile(
    r"(?<![A-Za-z0-9_-])(?:hf_[A-Za-z0-9]{20,}|sk-(?:[a-z0-9]+-)*\w{20,}|gh[oprsu]_\w{20,}|github_pat_\w{20,}|glpat-[\w-]{16,}"
    r"|(?:AKIA|ASIA)[A-Z0-9]{16}\b|xox[abeoprs]-[\w-]{10,}|AIza[\w-]{30,}|wandb_v1_\w{20,}|eyJ[\w-]{8,}\.eyJ[\w-]{8,})"
    r"|-----BEGIN [A-Z ]*PRIVATE KEY|://[^\s/:@]*:(?!\$)[^\s/@]+@"
)
# What no secret is, whatever its name: a path, or a switch.
_NO_SECRET = re.compile(r"(?:\$\{shared_root\}|~)?(?:/[\w.@-]+){2,}|true|false|null|none", re.IGNORECASE)
# NAME=VALUE or NAME: VALUE anywhere in an override, whose value may be a mapping.
_PAIR = re.compile(r"""\b(\w+)["']?\s*[=:]\s*(?=["']?((?:\$\{[^}]*\}|[^\s,{}\[\]"'])+))""")
_SHOWABLE = re.compile(r"[\w.+~/@]+")


def check(request: Request) -> None:
    """Raise BadInput, which shows no value, if env_vars or an override of any layer has a secret and the user did not allow it."""
    base, spec = request.base, request.spec
    found = [
        (f"env_vars.{shown(name)} (from {document.origin})", name)
        for document in (base, spec)
        for name, value in document.env_vars.items()
        if _is_secret(name, value, is_variable=True)
    ]
    by_base = (Override(text, base.origin) for texts in base.trainer_overrides.values() for text in texts)
    by_spec = (Override(text, spec.origin) for text in spec.trainer_overrides)
    for override in (*by_base, *by_spec, *request.said.overrides):
        key = override.text.partition("=")[0]
        place = key if _SHOWABLE.fullmatch(key) and not _VALUE.search(key) else "an override"
        found += [(f"{place} (from {override.origin})", name) for name in _named_in(override.text)]
    if not found or request.said.plain_secrets:
        return
    names = ", ".join(dict.fromkeys(f"{{name: {name.upper()}}}" for _, name in found))
    raise BadInput(
        f"{' and '.join(dict.fromkeys(place for place, _ in found))} {'look like secrets' if len(found) > 1 else 'looks like a secret'}, "
        f"which Ray and the job's files show as plain text: write secrets: [{names}] in the JobSpec instead (an override for verl reads it as "
        "${oc.env:NAME}), or set ALLOW_PLAIN_SECRETS=1."
    )


def _named_in(text: str) -> list[str]:
    """The names that the secrets in an override have there."""
    is_secret = (
        (name, _is_secret(name, value, is_variable=name.isupper() or "env_vars" in text))
        for name, value in _PAIR.findall(text)
    )
    return [name for name, is_one in is_secret if is_one] or (["NAME"] if _VALUE.search(text) else [])


def _is_secret(name: str, value: str, *, is_variable: bool) -> bool:
    """Is it one by its form, or by its name?"""
    by_name = (_VARIABLE if is_variable else _HYDRA_KEY).match(f"{name}={value}")
    return _VALUE.search(value) is not None or (by_name is not None and not _NO_SECRET.fullmatch(value))
