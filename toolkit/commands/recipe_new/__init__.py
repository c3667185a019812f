"""`toolkit recipe new`: write a recipe that fits the user's data.

:mod:`.look` inspects the data, :mod:`.columns` finds texts and labels, and :mod:`.choose` chooses sizes. :mod:`.tasks`
and :mod:`.write` format the recipe. :mod:`.recipe_new` calls these modules.
"""
