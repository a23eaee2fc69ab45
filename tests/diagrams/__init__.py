"""State diagrams of the pure core, drawn from what its machines do: ``python -m tests.diagrams --write``.

A *subject* is one machine in a small world: it says what may happen next, is told, and has a state with a name. All its
histories are gone through (``explore``), and what leads from one named state to another, and what is ordered then, is
collected. ``pages`` writes that down in docs/state-diagrams.md.

To add an algorithm of checkpointing: one entry in ``barriers.ALGORITHMS``. To add a machine: a subject, and one entry
in ``machines.DIAGRAMS``.
"""
