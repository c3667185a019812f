"""`toolkit recipe new`: write a recipe that fits given data. :mod:`.look` reads it, :mod:`.columns` finds texts and
labels, :mod:`.choose` sizes; :mod:`.tasks` and :mod:`.write` write the recipe; :mod:`.recipe_new` runs it all."""
