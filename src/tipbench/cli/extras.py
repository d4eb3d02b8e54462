"""Extras that are not installed: said before anything is imported that would break in the middle of it."""

from importlib.util import find_spec

from tipbench.errors import TipbenchError


def check_extra(extra: str, *modules: str) -> None:
    """Refuses to go on without what the extra brings.

    Raises:
        TipbenchError: one of the modules is not installed; says what to install.
    """
    if any(find_spec(module) is None for module in modules):
        raise TipbenchError(
            f"this needs the extra `{extra}`", hint=f"Install it: pip install 'tipbench[{extra}]'"
        )
