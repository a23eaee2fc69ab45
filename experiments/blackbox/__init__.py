"""A checker that knows the input alone watches the far end of jobs under drawn faults: ``flinkplus experiment
black-box``."""
