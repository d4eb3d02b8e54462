"""Which policies there are: whatever the files in `rules` offer."""

import pkgutil
from collections.abc import Mapping
from importlib import import_module

from tipbench.policies import rules
from tipbench.policies.policy import Policy
from tipbench.policies.refusals import UnknownPolicy


def list_policies() -> dict[str, Policy]:
    """Name → policy, in the order of the files."""
    found: dict[str, Policy] = {}
    for module in sorted(pkgutil.iter_modules(rules.__path__), key=lambda module: module.name):
        for policy in import_module(f"{rules.__name__}.{module.name}").POLICIES:
            found[policy.name] = policy
    return found


def find_policy(policies: Mapping[str, Policy], name: str) -> Policy:
    """The policy of that name, or of that place in URLs (`egreedy/v2`).

    Raises:
        UnknownPolicy: there is none; the hint lists those there are.
    """
    for policy in policies.values():
        if name in {policy.name, policy.path}:
            return policy
    raise UnknownPolicy(f"no policy {name!r}", hint=f"There are: {', '.join(policies)}")
