"""Running time of a fixed input against parallelism: measured up to the machine's cores, simulated beyond."""
