"""Sentences of refusals are fit for a pod's event."""

import ast
from pathlib import Path

import pytest

import fractile
from fractile.model.refusal import Code, Refusal

SOURCE = Path(fractile.__file__).parent
SPEAKERS = ("policy/cards", "policy/quota.py", "ledger", "dialects", "extender/nominated.py", "extender/bind.py")


@pytest.mark.parametrize("foreign", ["Tesla 100%", "%s %d %!", "%%"])
def test_no_refusal_holds_a_percent_sign_whatever_it_quotes(foreign: str) -> None:
    message = Refusal(Code.NO_SUCH_CARD, f"the pod asks for {foreign}, the node has A100").message
    assert "%" not in message
    assert message == f"the pod asks for {foreign}, the node has A100".replace("%", "\uff05")


@pytest.mark.parametrize("place", SPEAKERS)
def test_our_own_sentences_of_refusals_say_percent(place: str) -> None:
    where = SOURCE / place
    for file in sorted(where.rglob("*.py")) if where.is_dir() else [where]:
        for text in _spoken(ast.parse(file.read_text())):
            assert "%" not in text, f"{file.name}: {text!r}"


def _spoken(tree: ast.AST) -> list[str]:
    """Texts that are not docstrings, formats of log lines or patterns."""
    quiet = {id(n.value) for n in ast.walk(tree) if isinstance(n, ast.Expr)}
    calls = (n for n in ast.walk(tree) if isinstance(n, ast.Call) and isinstance(n.func, ast.Attribute))
    for call in calls:
        if ast.unparse(call.func).startswith(("log.", "re.")):
            quiet |= {id(a) for a in call.args}
    texts = [n for n in ast.walk(tree) if isinstance(n, ast.Constant) and id(n) not in quiet]
    return [n.value for n in texts if isinstance(n.value, str)]
