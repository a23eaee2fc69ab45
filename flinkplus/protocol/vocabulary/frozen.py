"""The base class of events, effects and decisions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from typing_extensions import dataclass_transform


@dataclass_transform(frozen_default=True)
class Frozen:
    """Each subclass is a frozen dataclass: immutable, compared by content, and matched by its fields."""

    __dataclass_fields__: ClassVar[dict[str, Any]]  # for the type of ``dataclasses.replace``

    def __init_subclass__(cls) -> None:
        dataclass(frozen=True)(cls)
