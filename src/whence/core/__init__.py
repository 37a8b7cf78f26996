"""What every floor stands on, without torch: inputs, results, storage, the registry, wording, geometry, statistics."""
