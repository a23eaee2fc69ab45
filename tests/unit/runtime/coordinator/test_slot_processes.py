"""Which slots a job has, and whether one of them is alone."""

from __future__ import annotations

from flinkplus.runtime.coordinator.dispatch.slot_processes import SlotProcesses


def test_a_slot_is_alone_while_no_other_takes_part_or_stands_by() -> None:
    slots = SlotProcesses(1)

    def alone() -> bool:
        return slots.is_alone

    assert alone()
    second = slots.add(reserved=True)
    assert alone(), "a slot of a rescale takes no part before the switch"
    slots.need((0, second))
    assert not alone()
    slots.need((0,))
    assert alone(), "the other one is about to end"
    slots.end(second)
    assert alone()
    spare = slots.add()
    assert not alone()
    slots.end(spare)
    assert alone()


def test_of_several_slots_none_is_alone() -> None:
    slots = SlotProcesses(3)
    assert not slots.is_alone
