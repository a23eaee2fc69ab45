"""The watermark of one subtask: the progress of event time on all of its input channels together.

A channel's watermark promises that no row before it will still arrive on that channel. The subtask's watermark is the
minimum over its channels. A channel that has ended does not count; one without a watermark so far keeps the subtask
without one.

Rules and invariants:

- the watermarks are a pure function of the messages taken, so repeated steps have the same ones;
- neither a channel's watermark nor the subtask's goes back: one that does not rise changes nothing (with weaker
  guarantees messages arrive again);
- the end of all channels is the end of time; it is not reported here: the step that takes the last end of input knows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from flinkplus.protocol.vocabulary.ids import ChannelId, invariant

END_OF_TIME_MS = (1 << 63) - 1
"""After every row and every timer: the watermark when all input has ended."""
START_OF_TIME_MS = -(1 << 63)


class InputWatermarks:
    """The watermarks of all input channels of a subtask, in milliseconds.

    ``saved``: what ``saved`` returned for a snapshot.
    ``ended``: the channels that had ended by then.
    """

    __slots__ = ("_channels", "_combined", "_ended", "_known")

    def __init__(
        self, channels: Sequence[ChannelId], saved: Mapping[str, int] | None = None, ended: Sequence[ChannelId] = ()
    ) -> None:
        self._channels = tuple(channels)
        self._ended = set(ended)  # looked up, never iterated
        self._known = {channel: saved[str(channel)] for channel in self._channels if saved and str(channel) in saved}
        self._combined = START_OF_TIME_MS
        if self._known:
            self._combined = self._least()

    def advance(self, channel: ChannelId, watermark_ms: int) -> int | None:
        """A step took a watermark from ``channel``. Returns the subtask's if it has risen, otherwise ``None``."""
        before = self._known.get(channel, START_OF_TIME_MS)
        if not before < watermark_ms < END_OF_TIME_MS or channel in self._ended:
            return None
        self._known[channel] = watermark_ms
        return self._risen() if before == self._combined else None

    def end(self, channel: ChannelId) -> int | None:
        """``channel`` has ended, and others have not. Returns the subtask's watermark if that has raised it."""
        self._ended.add(channel)
        return self._risen() if self._known else None

    def _risen(self) -> int | None:
        least = self._least()
        invariant(least >= self._combined, "a watermark went back", before=self._combined, now=least)
        if least in (self._combined, END_OF_TIME_MS):
            return None
        self._combined = least
        return least

    def _least(self) -> int:
        known, ended = self._known, self._ended
        return min(
            [known.get(channel, START_OF_TIME_MS) for channel in self._channels if channel not in ended],
            default=END_OF_TIME_MS,
        )

    def saved(self) -> dict[str, int]:
        """For a snapshot, JSON; empty in a job without watermarks."""
        return {str(channel): watermark_ms for channel, watermark_ms in self._known.items()}
