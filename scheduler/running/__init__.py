"""Running a plan: items admitted, steps started where they are ready, results landed."""
