"""The protocol core: pure state machines, driven alike by the runtime and by the simulator.

Ring 0: pure. Process: driver and slots. Rules: no clock, no randomness, no thread, no socket, no file, no logging.
Events go in as data, effects come out as data (``vocabulary.events``, ``vocabulary.effects``); time is an argument, in
milliseconds. Only ``errors``, ``documents``, ``path_names`` and ``printable`` are imported from the rest of FlinkPlus.
An illegal event raises and changes nothing.
"""
