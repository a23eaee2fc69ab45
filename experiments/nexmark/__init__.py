"""The queries of Nexmark on FlinkPlus and on Flink: events, queries, comparison with DuckDB, kills, throughput."""
