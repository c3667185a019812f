"""Language modelling under control codes.

:mod:`.task` is the task, :mod:`.documents` packs text into blocks, :mod:`.decoding` has the decoding algorithms,
:mod:`.samples` writes generated text into the run folder.
"""

from toolkit.tasks.language_modeling.task import (
    CORPORA as CORPORA,
)
from toolkit.tasks.language_modeling.task import (
    DESCRIPTION as DESCRIPTION,
)
from toolkit.tasks.language_modeling.task import (
    HEADS as HEADS,
)
from toolkit.tasks.language_modeling.task import (
    LOWER_IS_BETTER as LOWER_IS_BETTER,
)
from toolkit.tasks.language_modeling.task import (
    PREDICTS_FROM as PREDICTS_FROM,
)
from toolkit.tasks.language_modeling.task import (
    check as check,
)
from toolkit.tasks.language_modeling.task import (
    collate as collate,
)
from toolkit.tasks.language_modeling.task import (
    compute_metrics as compute_metrics,
)
from toolkit.tasks.language_modeling.task import (
    control_codes as control_codes,
)
from toolkit.tasks.language_modeling.task import (
    load_splits as load_splits,
)
from toolkit.tasks.language_modeling.task import (
    num_loss_terms as num_loss_terms,
)
from toolkit.tasks.language_modeling.task import (
    outputs as outputs,
)
from toolkit.tasks.language_modeling.task import (
    predict as predict,
)
from toolkit.tasks.language_modeling.task import (
    prepare as prepare,
)
from toolkit.tasks.language_modeling.task import (
    texts as texts,
)
from toolkit.tasks.language_modeling.task import (
    write_artifacts as write_artifacts,
)
