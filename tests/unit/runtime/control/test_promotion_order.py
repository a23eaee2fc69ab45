"""The promotion order: its document is the one of before it was a class, and a malformed one is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest

from flinkplus.errors import PeerProtocolError
from flinkplus.runtime.control import messages as control
from flinkplus.runtime.control.promotion_order import PromotionOrder
from tests.handles import handle_of

LEAST: dict[str, Any] = {
    "version": 3,
    "handle": handle_of(steps=9, checkpoint=3).to_json(),
    "given_up": [4],
    "overtaking": [5, 6],
    "received": {"0:1->2": 7},
    "marks": {"0:0->1": 2},
    "digests": {"0:1->2": [[4, "AA=="]]},
    "determinants": [[3, [8, 16]]],
    "ancestors": {"lines[0]": [[0, [1]]]},
}
FULL = {**LEAST, "inputs": {"0:0->1": 3}, "pass_over": 2, "mark": 0, "recorded": 4}
UNSAFE = {**LEAST["handle"], "files": [{"name": "../x", "kind": "base"}]}


def message(document: object) -> bytes:
    """A ``Promote`` with ``document`` in it, as another program would write it."""
    body = json.loads(control.encode(control.Promote(1, 2, 0, 0.0, False, 1, {})))
    body["body"]["subtasks"] = {"count[1]": document}
    return json.dumps(body).encode()


@pytest.mark.parametrize("document", [{**LEAST, "inputs": {}, "pass_over": 0, "mark": None, "recorded": 0}, FULL])
def test_an_order_is_read_and_written_back_equal(document: dict[str, Any]) -> None:
    assert PromotionOrder.from_json(document).to_json() == document
    assert list(PromotionOrder.from_json(document).to_json()) == list(document), "also in its order"
    assert PromotionOrder.from_json({**LEAST, **document}) == PromotionOrder.from_json(document)
    read = control.decode(message(document))
    assert isinstance(read, control.Promote)
    assert read.subtasks == {"count[1]": PromotionOrder.from_json(document)}
    assert control.encode(read) == message(document)


@pytest.mark.parametrize("field", FULL)
@pytest.mark.parametrize("value", ["x", True, ["x"], 1.5, {"a": None}])
def test_a_field_of_another_type_is_refused(field: str, value: object) -> None:
    if field == "handle" and isinstance(value, dict):
        value = UNSAFE
    with pytest.raises(PeerProtocolError, match="malformed promotion order"):
        control.decode(message({**FULL, field: value}))


@pytest.mark.parametrize("field", sorted(LEAST.keys() - {"given_up", "overtaking"}))
def test_an_order_that_lacks_a_field_is_refused(field: str) -> None:
    with pytest.raises(PeerProtocolError, match=field):
        control.decode(message({name: value for name, value in LEAST.items() if name != field}))


@pytest.mark.parametrize("document", [None, 1, "version", [], ["version"], {}, {**FULL, "more\n": 1}])
def test_what_is_no_order_is_refused(document: object) -> None:
    with pytest.raises(PeerProtocolError) as refused:
        control.decode(message(document))
    assert str(refused.value).isprintable()


def test_orders_come_by_subtask() -> None:
    outer = json.loads(message(FULL))
    for subtasks in (None, 1, "count[1]", [FULL], {"../x[0]": FULL}):
        outer["body"]["subtasks"] = subtasks
        with pytest.raises(PeerProtocolError):
            control.decode(json.dumps(outer).encode())
    del outer["body"]["subtasks"]
    with pytest.raises(PeerProtocolError):
        control.decode(json.dumps(outer).encode())
