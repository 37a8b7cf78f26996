"""Runs over data sets: plans cut into chunks, engines here and on Ray, Parquet shards that lose nothing."""
