"""Runs over data sets: a plan cut into chunks, engines that run them here or on Ray, Parquet shards that lose nothing."""
