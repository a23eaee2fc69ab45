"""The protocol core: pure state machines, driven alike by the runtime and by the simulator.

Ring 0: pure. Rules: no clock, no randomness, no thread, no socket, no file, no logging. Events go in as data,
effects come out as data (``vocabulary.events``, ``vocabulary.effects``); time is an argument, in milliseconds.
Nothing of FlinkPlus but ``flinkplus.errors`` is imported here. An illegal event raises and changes nothing.
"""
