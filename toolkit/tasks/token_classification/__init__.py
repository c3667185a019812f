"""Token classification: entities of a text, such as persons and places (NER), by a tag for each word.

:mod:`.task` is the task. :mod:`.conll` reads CoNLL files, :mod:`.rows` converts any layout to words and tags,
:mod:`.tags` converts tags to entities and scores them, :mod:`.windows` cuts texts into windows, :mod:`.labeling`
predicts.
"""
