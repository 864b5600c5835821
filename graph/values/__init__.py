"""Values that know no graph: errors, names, dtypes, specs, dimensions, registries."""
