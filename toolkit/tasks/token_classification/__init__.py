"""Token classification: entities of a text, such as persons and places (NER), by a tag for each word.

:mod:`.task` is the task. :mod:`.conll` reads CoNLL files, :mod:`.rows` makes words and tags of any layout, :mod:`.tags`
makes entities of tags and scores them, :mod:`.windows` cuts texts into what a model reads, :mod:`.labelling` predicts.
"""
