"""How a slot that cannot begin tells the driver why, before its process ends.

Rules: bounded, whatever the driver does; what goes wrong here is only logged, since the first error matters more.
"""

from __future__ import annotations

import logging
import os
import queue
import socket
import time
import traceback
from typing import Any

from flinkplus.runtime import control
from flinkplus.runtime.inbox import Inbox
from flinkplus.runtime.planes import ControlLost, control_link
from flinkplus.runtime.slot_config import SlotConfig

REPORT_TIMEOUT_S = 5.0
LONGEST_REASON = 2_000
LONGEST_TRACE = 20_000

log = logging.getLogger("flinkplus.slot")


def report_failed_start(index: int, config: SlotConfig, spark_attempt: int, error: Exception) -> None:
    """Tell the coordinator why slot ``index`` cannot begin; returns when it has heard, or cannot be reached."""
    try:
        _report(index, config, _failure(index, spark_attempt, error))
    except Exception:
        log.warning("the driver cannot be told why slot %d does not start", index, exc_info=True)


def _failure(index: int, spark_attempt: int, error: Exception) -> control.StartFailed:
    trace = "".join(traceback.format_exception(error))
    reason = str(error)[:LONGEST_REASON]
    return control.StartFailed(
        index, spark_attempt, os.getpid(), socket.gethostname(), type(error).__name__, reason, trace[-LONGEST_TRACE:]
    )


def _report(index: int, config: SlotConfig, failure: control.StartFailed) -> None:
    inbox: Inbox[Any] = Inbox()
    try:
        link = control_link(index, config.options, config.credentials, config.coordinator, inbox)
        try:
            link.open()
            link.send(failure)
            _await_loss(inbox)
        finally:
            link.close()
    finally:
        inbox.close()


def _await_loss(inbox: Inbox[Any]) -> None:
    """Until the other end has closed the stream: the coordinator does when it has heard."""
    deadline = time.monotonic() + REPORT_TIMEOUT_S
    while (left_s := deadline - time.monotonic()) > 0:
        try:
            if isinstance(inbox.get(left_s), ControlLost):
                return
        except queue.Empty:
            continue  # a socket was served
