"""Steps that a promoted subtask repeats together, because many small ones cost much more than one of as many rows.

The work processes the rows of all of them at once. Each step is then logged, and sends its own messages, as if it were
repeated alone: messages have the same rows, numbers and determinants, and a sink's recipe is cut at the end of each
step. No consumer can tell how a subtask was repeated, and one that has some of the messages gets the others.

Rules: only steps that are known not to have read the clock, and only where the work says that their output does not
depend on it (``SubtaskWork.joins_steps``). No message of another kind, such as a barrier, comes between two of them.
Together they stay within the limits of one bundle. Each step takes its messages when it begins to send, and they are
consumed when it has sent all. One thread, that of the steps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Any

from flinkplus.errors import NondeterministicOperator
from flinkplus.protocol.channels.inputs import Bundle, InputChannel
from flinkplus.protocol.determinants.determinants import Choice
from flinkplus.protocol.subtask.parts import SubtaskParts
from flinkplus.protocol.vocabulary.ids import ChannelId
from flinkplus.protocol.vocabulary.messages import Message, MessageKind

JOINED_ROWS = 512
"""Maximum number of rows of a step that is repeated together with others; a larger one gains nothing from it."""

Waiting = tuple[Message, Any]
"""A message on an input channel, with its payload."""


class JoinedSteps:
    """The steps that one subtask repeats together.

    ``channels``: its input channels, by position.
    ``begin_bundle``: logs a step that takes a bundle.
    ``pass_on``: a step that has begun takes a message.
    ``end``: sends the end of input.
    ``is_head``: it is the head of a loop, whose steps are repeated one by one.
    """

    def __init__(
        self,
        parts: SubtaskParts,
        channels: Sequence[InputChannel],
        begin_bundle: Callable[[Bundle], None],
        pass_on: Callable[[InputChannel, Message, Any], None],
        end: Callable[[], Iterator[None]],
        is_head: bool,
    ) -> None:
        self._is_source = parts.is_source
        self._replay = parts.replay
        self._inputs = parts.inputs
        self._history = parts.history
        self._work = parts.work
        self._channels = channels
        self._begin_bundle = begin_bundle
        self._pass_on = pass_on
        self._end = end
        self._outputs = parts.outputs
        self._one_by_one = is_head

    def begin(self) -> tuple[Bundle, Iterator[None]] | None:
        """Begin the next steps, if several may be repeated together: what the last one takes, and all of them as
        one."""
        if self._one_by_one or not self._work.joins_steps:
            return None
        return self._begin_reads() if self._is_source else self._begin_bundles()

    # --- a source

    def _begin_reads(self) -> tuple[Bundle, Iterator[None]] | None:
        steps: list[int] = []
        most_rows, most_bytes = self._inputs.limits
        for choice in self._replay.reads_ahead():
            rows = self._work.rows_of(choice)
            most_rows -= rows
            if rows > JOINED_ROWS or most_rows < 0:
                break
            steps.append(choice)
        if len(steps) < 2:
            return None
        sendings, at_end = self._work.read_together(steps, most_bytes)
        steps = steps[: len(sendings) + at_end]
        self._replay.take_steps(len(steps))
        if at_end and next(self._replay.reads_ahead(), None) is not None:
            raise NondeterministicOperator("the source ended before its predecessor's last step")
        return [], self._read(steps, sendings)

    def _read(self, steps: list[int], sendings: Sequence[Iterator[None]]) -> Iterator[None]:
        for at, choice in enumerate(steps):
            if at:
                self._outputs.cut_recipe()
            self._history.begin(Choice.READ, choice)
            yield from sendings[at] if at < len(sendings) else self._end()

    # --- messages

    def _begin_bundles(self) -> tuple[Bundle, Iterator[None]] | None:
        arrived = self._arrived()
        if len(arrived) < 2:
            return None
        bundles = [bundle for bundle, _ in arrived]
        self._replay.take_steps(sum(map(len, bundles)))
        return bundles[-1], self._push(bundles, [messages for _, messages in arrived])

    def _arrived(self) -> list[tuple[Bundle, list[Waiting]]]:
        """The next bundles that may be taken together and have arrived whole, each with its messages, which still wait
        on their channels."""
        found: list[tuple[Bundle, list[Waiting]]] = []
        rows, size_bytes = self._inputs.limits
        queued: dict[ChannelId, Iterator[Waiting]] = {}
        for parts in self._replay.bundles_ahead(len(self._channels)):
            bundle = [(self._channels[part.position], part.messages) for part in parts]
            waiting: list[Waiting] = []
            for end, count in bundle:
                waiting += islice(queued.setdefault(end.channel, iter(end.queue)), count)
            own_rows = sum(message.rows for message, _ in waiting)
            rows -= own_rows
            size_bytes -= sum(message.size for message, _ in waiting)
            whole = len(waiting) == sum(count for _, count in bundle)
            of_records = all(m.kind is MessageKind.RECORDS for m, _ in waiting) and not any(e.ended for e, _ in bundle)
            if not (whole and of_records) or own_rows > JOINED_ROWS or rows < 0 or size_bytes < 0:
                break
            found.append((bundle, waiting))
        return found

    def _push(self, bundles: list[Bundle], waiting: list[list[Waiting]]) -> Iterator[None]:
        sendings = self._work.push_together(waiting)
        for bundle, sending in zip(bundles, sendings, strict=True):
            self._begin_bundle(bundle)
            for end, message, payload in self._inputs.take(bundle):
                self._pass_on(end, message, payload)
            yield from sending
            if bundle is not bundles[-1]:
                self._ended(bundle)

    def _ended(self, bundle: Bundle) -> None:
        """A step before the last one has ended. Its producers get credit at once: another consumer of theirs may need
        what they send next before this subtask can send more."""
        for end, count in bundle:
            self._inputs.consumed(end, count)
        self._outputs.cut_recipe()
