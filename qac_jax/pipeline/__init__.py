"""The basis of every verb: stages, typed inputs, settings, recipes and grids."""
