"""What every verb stands on: stages, typed inputs, settings, recipes, grids."""
