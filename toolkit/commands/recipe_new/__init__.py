"""`toolkit recipe new`: a recipe for somebody's data, by looking at it. :mod:`.look` reads it, :mod:`.columns` finds
texts and labels, :mod:`.choose` the sizes, :mod:`.tasks` and :mod:`.write` the recipe, :mod:`.command` is all of it."""
