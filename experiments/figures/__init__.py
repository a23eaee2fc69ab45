"""The published figures: their tables in the documents, and where they come from, made from docs/results."""
