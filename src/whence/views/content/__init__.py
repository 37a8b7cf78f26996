"""What every medium says about a result, a module per type of result: facts, rows, names, and no looks."""
