"""ZooKeeper: the authority on which slots live, who heads which chain, and who coordinates.

``embedded`` runs a real server for one job; ``registry`` is the coordinator's side, ``session`` a slot's. Nothing is
imported here, so that a slot loads only what it uses, and only this package knows kazoo.

Ring 2. Process: driver and slots. Thread: those of kazoo, and a watch over the server.
"""
