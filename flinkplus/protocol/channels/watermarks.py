"""The watermark of one subtask: how far event time has come on all of its input channels together.

A watermark of a channel says that no row before it will come on that channel any more. What counts is the least of all
channels; one that has ended holds nobody back, one that has never had a watermark holds everybody back.

Rules and invariants:

- what is known is a pure function of the messages taken, so it is the same again when steps are repeated;
- a channel's watermark never goes back, nor does the subtask's: one that does not rise changes nothing (with weaker
  guarantees messages come again);
- the end of all channels is the end of time; it is not told here: whoever takes the last end of input knows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from flinkplus.protocol.vocabulary.ids import ChannelId, invariant

END_OF_TIME_MS = (1 << 63) - 1
"""Behind every row and every timer: the watermark when all input has ended."""
START_OF_TIME_MS = -(1 << 63)


class InputWatermarks:
    """The watermarks of all input channels of a subtask, in milliseconds.

    ``saved``: what ``saved`` gave in a snapshot; ``ended``: the channels that had ended by then.
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
        """A watermark was taken off ``channel``. Returns the subtask's when it has risen, else ``None``."""
        before = self._known.get(channel, START_OF_TIME_MS)
        if not before < watermark_ms < END_OF_TIME_MS or channel in self._ended:
            return None
        self._known[channel] = watermark_ms
        return self._risen() if before == self._combined else None

    def end(self, channel: ChannelId) -> int | None:
        """``channel`` has ended, and others have not. Returns the subtask's watermark when it has risen by that."""
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
