"""Text classification. :mod:`.task` is the task, :mod:`.labels` the labelled texts that it is trained on."""

from toolkit.tasks.classification.task import (
    CORPORA as CORPORA,
)
from toolkit.tasks.classification.task import (
    DESCRIPTION as DESCRIPTION,
)
from toolkit.tasks.classification.task import (
    HEADS as HEADS,
)
from toolkit.tasks.classification.task import (
    LOWER_IS_BETTER as LOWER_IS_BETTER,
)
from toolkit.tasks.classification.task import (
    PREDICTS_FROM as PREDICTS_FROM,
)
from toolkit.tasks.classification.task import (
    check as check,
)
from toolkit.tasks.classification.task import (
    collate as collate,
)
from toolkit.tasks.classification.task import (
    compute_metrics as compute_metrics,
)
from toolkit.tasks.classification.task import (
    control_codes as control_codes,
)
from toolkit.tasks.classification.task import (
    load_splits as load_splits,
)
from toolkit.tasks.classification.task import (
    num_loss_terms as num_loss_terms,
)
from toolkit.tasks.classification.task import (
    outputs as outputs,
)
from toolkit.tasks.classification.task import (
    predict as predict,
)
from toolkit.tasks.classification.task import (
    prepare as prepare,
)
from toolkit.tasks.classification.task import (
    texts as texts,
)
from toolkit.tasks.classification.task import (
    write_artifacts as write_artifacts,
)
