"""``transform_with_state``: PySpark's ``StatefulProcessor``, unchanged, as an operator.

Rules:
- ``handleInputRows`` is called once for each key of a batch, with the key's rows in the order of the stream; keys come
  in the order of their first rows. Where a batch ends is logged with the step, so a repeated step makes the same calls;
  another run of the job may cut batches elsewhere;
- rows are PySpark's, and have what PySpark shows: timestamps without a zone, in local time; structs as rows;
- each subtask has a copy of the processor, made from its pickle; ``init`` is called when the subtask starts or is
  restored, ``close`` when it ends, however that is;
- a timer is called when its time has come, and all that are left when all input has ended.
"""

from __future__ import annotations

import datetime
import pickle
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, cast

import pyarrow as pa
from typing_extensions import override

from flinkplus.errors import ConfigurationError
from flinkplus.operators.base.keys import KeyCodes, check_key_columns
from flinkplus.operators.base.operator import KeyedOperator, OperatorContext, OperatorInstance
from flinkplus.operators.base.row import USER_EXCEPTIONS, Row, user_error
from flinkplus.operators.base.stored_state import StateView
from flinkplus.operators.base.values import is_list
from flinkplus.operators.keyed.keyed_rows import CLOCK, Process, ProcessInstance
from flinkplus.operators.processors.handle import TIME_MODES, TIMERS, Declared, SparkHandle, TimeMode
from flinkplus.protocol.program.description import StateDescription

_UNKNOWN_MS = -1
"""What PySpark has in the place of a time that is not known."""
METHODS = ("init", "handleInputRows", "handleExpiredTimer", "close")


def pickled_processor(operator: str, processor: Any, time_mode: TimeMode) -> bytes:
    """The pickle of a ``StatefulProcessor``, of which a copy has been initialised. Raises ``ConfigurationError`` for
    another object, one that cannot be pickled, and for states that there cannot be."""
    missing = [method for method in METHODS if not callable(getattr(processor, method, None))]
    if missing or isinstance(processor, type):
        what = f"the class {processor.__name__}" if isinstance(processor, type) else f"a {type(processor).__name__}"
        raise ConfigurationError(f"operator {operator!r} needs an instance of a StatefulProcessor, not {what}")
    from pyspark import cloudpickle  # as Spark pickles it

    try:
        pickled: bytes = cloudpickle.dumps(processor)
    except Exception as error:
        raise ConfigurationError(f"operator {operator!r}: the processor cannot be pickled: {error}") from error
    try:
        copy = pickle.loads(pickled)
        copy.init(SparkHandle(Declared(operator), time_mode))
        copy.close()
    except ConfigurationError:
        raise
    except Exception as error:
        raise ConfigurationError(f"operator {operator!r}: init of the processor fails: {error!r}") from error
    return pickled


def time_mode_of(operator: str, time_mode: str) -> TimeMode:
    """The mode that ``time_mode`` names, in words of FlinkPlus or of PySpark. Raises ``ConfigurationError``."""
    found = {mode.replace("_", ""): mode for mode in TIME_MODES}.get(str(time_mode).lower().replace("_", ""))
    if found is None:
        raise ConfigurationError(f"operator {operator!r}: time_mode is one of {TIME_MODES}, not {time_mode!r}")
    return cast("TimeMode", found)


def _never(*_: Any) -> None:
    """In the place of a function that is not called."""


@dataclass(frozen=True)
class TransformWithState(KeyedOperator):
    """Calls ``processor``, the pickle of a ``StatefulProcessor``, for the rows of each key. ``schema``: of what it
    gives."""

    processor: bytes
    schema: pa.Schema
    time_mode: TimeMode
    hears_watermarks = True
    holds_rows = True

    @property
    @override
    def has_clock(self) -> bool:
        return self.time_mode == "processing_time"

    @override
    def output_schema(self, schema: pa.Schema) -> pa.Schema:
        check_key_columns(schema, self.keys)
        if not self.keys:
            raise ConfigurationError(f"operator {self.name!r} needs key_by before")
        return self.schema

    @override
    def described_state(self, schema: pa.Schema) -> StateDescription:
        """Timers are those of the mode; what the processor keeps under names of its own is its own."""
        rows = {"event_time": ["#timers"], "processing_time": [f"{CLOCK}#timers"]}.get(self.time_mode, [])
        return StateDescription(
            keys=self._key_types(schema), rows={name: () for name in rows}, settings={"time_mode": self.time_mode}
        )

    @override
    def create(self, ctx: OperatorContext) -> OperatorInstance:
        return _TransformInstance(self, ctx)

    def state_views(self, schema: pa.Schema, states: Sequence[str]) -> Sequence[StateView]:
        shown = [name for name in states if name != f"{self.name}/{TIMERS}"]
        return self.as_process().state_views(schema, shown)

    def as_process(self, expired: Callable[..., Any] = _never) -> Process:
        """The ``Process`` with the state and timers of this operator. ``expired``: called for timers."""
        return Process(
            self.name,
            self.keys,
            _never,
            self.schema,
            on_timer=expired if self.time_mode == "event_time" else None,
            on_processing_timer=expired if self.time_mode == "processing_time" else None,
        )


class _TransformInstance(ProcessInstance):
    def __init__(self, descriptor: TransformWithState, ctx: OperatorContext) -> None:
        super().__init__(descriptor.as_process(expired=self._expired), ctx)
        from pyspark.sql.streaming.stateful_processor import ExpiredTimerInfo, TimerValues  # slow to import

        self._timer_values, self._expired_info = TimerValues, ExpiredTimerInfo
        self._mode = descriptor.time_mode
        self._row = spark_rows(ctx.input_schema)
        self._positions = [ctx.input_schema.get_field_index(column) for column in descriptor.keys]
        self._handle = SparkHandle(self._context, descriptor.time_mode)
        self._processor = pickle.loads(descriptor.processor)
        self._own("init", lambda: self._processor.init(self._handle))

    def _own(self, method: str, call: Callable[[], Any]) -> None:
        """A call that is of no row."""
        try:
            call()
        except ConfigurationError:
            raise
        except USER_EXCEPTIONS as error:
            raise user_error(self._ctx.operator, self._ctx.subtask, f"{method}()", error) from error

    @override
    def _called(self, rows: list[Row], key: KeyCodes) -> Iterator[pa.RecordBatch]:
        context = self._context
        context.begin(key)
        groups: dict[int, list[Row]] = {}
        for row, code in zip(rows, key.codes.tolist(), strict=True):
            groups.setdefault(code, []).append(row)
        for code, mine in groups.items():
            context.code = code
            yield from self._collected(mine[0], self._given([self._row(row) for row in mine]))
        yield from self._finished(2 * len(rows))

    def _given(self, rows: list[Any]) -> list[Any]:
        """All that the processor gives for rows of one key: it ends before the next call begins."""
        key = self._context.key = tuple(rows[0][position] for position in self._positions)
        try:
            result = self._processor.handleInputRows(key, iter(self._ctx.noted(rows)), self._times())
            return [] if result is None else list(_checked(result))
        except ConfigurationError:
            raise
        except USER_EXCEPTIONS as error:
            raise user_error(self._ctx.operator, self._ctx.subtask, rows[0], error) from error

    def _times(self) -> Any:
        """The times of the batch, as PySpark has them."""
        if self._mode == "none":
            return self._timer_values(_UNKNOWN_MS, _UNKNOWN_MS)
        watermark = self._context.watermark
        now_ms = self._context.processing_time
        if self._mode == "processing_time":
            return self._timer_values(now_ms, _UNKNOWN_MS)
        return self._timer_values(now_ms, 0 if watermark is None else watermark)

    def _expired(self, key: Any, at_ms: int, context: Any) -> list[Any]:
        info, times = self._expired_info(at_ms), self._times()
        self._handle.fired(at_ms)
        result = self._processor.handleExpiredTimer(key, times, info)
        return [] if result is None else list(_checked(result))

    @override
    def close(self) -> None:
        self._own("close", self._processor.close)


def _checked(result: Any) -> Iterable[Any]:
    """What the processor gives, if it is rows. Raises ``TypeError``."""
    for each in result:
        if hasattr(each, "columns") and hasattr(each, "iloc"):
            raise TypeError(
                "gave a pandas.DataFrame: processors of transformWithStateInPandas are not supported; give rows "
                "(pyspark.sql.Row), as for transformWithState"
            )
        yield each


# --- rows as PySpark shows them


def spark_rows(schema: pa.Schema) -> Callable[[Row], Any]:
    """What makes a row of ``schema`` a row of PySpark."""
    from pyspark.sql.types import Row as SparkRow

    make = SparkRow(*schema.names)
    shows = [_spark_value(field.type) for field in schema]
    if not any(shows):
        return lambda row: make(*row)
    return lambda row: make(*[value if show is None else show(value) for show, value in zip(shows, row, strict=True)])


def _spark_value(dtype: pa.DataType) -> Callable[[Any], Any] | None:
    """What makes a value of FlinkPlus's rows one of PySpark's; ``None``: it is one."""
    if pa.types.is_timestamp(dtype) and dtype.tz is not None:
        return _local
    if pa.types.is_struct(dtype):
        from pyspark.sql.types import Row as SparkRow

        make = SparkRow(*[field.name for field in dtype])
        inner = [(field.name, _or_same(_spark_value(field.type))) for field in dtype]
        return lambda value: None if value is None else make(*[show(value[name]) for name, show in inner])
    if is_list(dtype):
        element = _spark_value(dtype.value_type)
        return None if element is None else lambda values: None if values is None else list(map(element, values))
    if pa.types.is_map(dtype):
        shown = _spark_value(dtype.key_type), _spark_value(dtype.item_type)
        if shown == (None, None):
            return None
        key, item = map(_or_same, shown)
        return lambda pairs: None if pairs is None else {key(each): item(value) for each, value in pairs.items()}
    return None


def _or_same(show: Callable[[Any], Any] | None) -> Callable[[Any], Any]:
    return (lambda value: value) if show is None else show


def _local(value: datetime.datetime | None) -> datetime.datetime | None:
    """A time of day without its zone, which is the local one; in the hour that is repeated, ``fold`` says which."""
    if value is None:
        return None
    local = value.replace(tzinfo=None)
    again = local.astimezone(datetime.timezone.utc) != value
    return local.replace(fold=1) if again else local
