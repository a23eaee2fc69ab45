"""A cluster on one machine: the services of ``docker-compose.yml``, each in Linux namespaces of its own."""
