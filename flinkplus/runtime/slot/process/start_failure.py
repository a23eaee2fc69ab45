"""How a slot that cannot start reports why, before its process ends: bounded in time even without an answer."""

from __future__ import annotations

import logging
import os
import queue
import socket
import time
import traceback
from contextlib import closing
from typing import Any

from flinkplus.errors import described
from flinkplus.runtime.base.inbox import Inbox
from flinkplus.runtime.control import messages as control
from flinkplus.runtime.slot.process.config import SlotConfig
from flinkplus.runtime.transport.factory import control_link
from flinkplus.runtime.transport.wire.ports import ControlLost

REPORT_TIMEOUT_S = 5.0
LONGEST_REASON = 2_000
LONGEST_TRACE = 20_000

log = logging.getLogger("flinkplus.slot")


def report_failed_start(index: int, config: SlotConfig, tries: int, error: Exception) -> bool:
    """Report to the coordinator why slot ``index`` cannot start; errors here are only logged. Returns whether it has
    taken the report. ``tries``: how often that happened just before."""
    try:
        with closing(Inbox[Any]()) as inbox:
            link = control_link(index, config.options, config.credentials, config.coordinator, inbox)
            with closing(link):
                link.open()
                link.send(_failure(index, tries, error))
                _await_loss(inbox)
    except Exception as problem:
        log.info("slot %d could not report its failed start to the coordinator: %s", index, problem)
        return False
    return True


def _failure(index: int, tries: int, error: Exception) -> control.StartFailed:
    trace = "".join(traceback.format_exception(error))
    reason = described(error).removeprefix(f"{type(error).__name__}: ")[:LONGEST_REASON]
    return control.StartFailed(
        index, tries, os.getpid(), socket.gethostname(), type(error).__name__, reason, trace[-LONGEST_TRACE:]
    )


def _await_loss(inbox: Inbox[Any]) -> None:
    """Wait until the coordinator has closed the stream, as it does after the report."""
    deadline = time.monotonic() + REPORT_TIMEOUT_S
    while (left_s := deadline - time.monotonic()) > 0:
        try:
            if isinstance(inbox.get(left_s), ControlLost):
                return
        except queue.Empty:
            continue  # a socket was served
