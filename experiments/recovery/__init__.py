"""How fast a job recovers: kills on order, both recovery modes on the same input, every output checked."""
