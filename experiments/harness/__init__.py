"""What all experiments share: settings as options, runs beside the main thread, the document, tables, pictures.

An experiment is an ``Experiment`` (``experiment.py``) with its settings, its runs, and what is shown of them.
"""
