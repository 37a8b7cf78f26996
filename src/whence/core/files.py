"""Endings of files, by what is inside."""

from __future__ import annotations

PICTURES = (".bmp", ".gif", ".jpeg", ".jpg", ".png", ".tif", ".tiff", ".webp")  # inputs and masks
TABLES = (".csv", ".tsv", ".jsonl", ".ndjson", ".parquet")  # data sets
FIGURES = (".png", ".svg", ".pdf")  # what matplotlib writes
