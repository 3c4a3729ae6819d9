"""The pages of the API: which modules and names a reader with one purpose wants, in which order."""

from typing import NamedTuple


class Page(NamedTuple):
    """A page of the API.

    Attributes:
      title: Its heading.
      text: What stands below the heading, Markdown.
      members: Modules, each with the names that are shown of it; all public ones with a docstring where there are none.
    """

    title: str
    text: str
    members: dict[str, tuple[str, ...]]


_ALL: tuple[str, ...] = ()

PAGES = {
    "model": Page(
        "Network",
        "The network of Hardt & Ma's Table 1 and its variants, on any Keras backend.",
        {
            "identity_matters.model": ("all_conv_resnet", "residual_block", "residual_stddev", "standardize"),
            "identity_matters.config": ("ModelConfig",),
            "identity_matters.comparators": _ALL,
        },
    ),
    "training": Page(
        "Training",
        "One call trains a network, or continues a run. [Train on your images](../../guides/train.md) is the guide.",
        {
            "identity_matters.training": ("train",),
            "identity_matters.config": ("TrainConfig",),
            "identity_matters.runs.callbacks": ("checked_callbacks",),
            "identity_matters.given_optimizer": ("as_text",),
            "identity_matters.optimization": ("learning_rate_schedule", "WarmUp"),
            "identity_matters.muon": ("orthogonalize", "Muon"),
            "identity_matters.errors": ("UserError", "Diverged", "EvaluationFailed", "Preempted", "WorkerLost"),
        },
    ),
    "data": Page(
        "Data",
        "Images and labels from Python, from an .npz file or from TFDS, and the batch stream.",
        {
            "identity_matters.data.source": ("open_source", "read_all", "Source"),
            "identity_matters.data.digits": ("mnist_sample",),
            "identity_matters.data.plans": ("epoch_order", "plan_batch"),
            "identity_matters.data.batches": ("ArrayBatches",),
        },
    ),
    "pretrained": Page(
        "Pretrained networks",
        "Networks whose weights come with the package.",
        {"identity_matters.pretrained": _ALL},
    ),
    "evaluation": Page(
        "Evaluation and export",
        "Errors of any trained network, and files for other programs.",
        {
            "identity_matters.evaluation": ("evaluate",),
            "identity_matters.export": ("export",),
            "identity_matters.safe_loading": ("load_network",),
        },
    ),
    "near_identity": Page(
        "Near the identity",
        "How near to the identity the blocks of a trained network are.",
        {"identity_matters.near_identity": _ALL},
    ),
    "curvature": Page(
        "Hessians of a Keras model",
        "Import the names from `shortcut_study.curvature`: `from shortcut_study import curvature`. "
        "[Hessians of my model](../../guides/shortcut_hessians.md) is the guide.",
        {
            "shortcut_study.curvature.operator": ("Hessian", "spectrum", "diagonal", "per_layer"),
            "shortcut_study.curvature.model_spectrum": ("ModelSpectrum", "PartSpectra"),
            "shortcut_study.curvature.report": ("parts_table", "parts_figure"),
            "shortcut_study.curvature.callback": ("HessianCallback",),
            "shortcut_study.curvature.dtypes": ("with_dtype",),
            "shortcut_study.curvature.lanczos": _ALL,
            "shortcut_study.curvature.quadrature": _ALL,
        },
    ),
    "shortcut_study": Page(
        "n-shortcut networks",
        "The networks of Li et al., their exact Hessians and how they learn.",
        {
            "shortcut_study.network": ("ShortcutNetwork",),
            "shortcut_study.hessian": ("hessian", "spectrum"),
            "shortcut_study.dynamics": _ALL,
        },
    ),
    "theory_linear": Page(
        "Theory: linear residual networks",
        "Hardt & Ma §2.",
        {
            "theory.linear_residual": _ALL,
            "theory.factorization": _ALL,
            "theory.linear.local_minima": _ALL,
        },
    ),
    "theory_memorization": Page(
        "Theory: memorisation",
        "Hardt & Ma §3, Theorem 3.2. Import the names from `theory.memorization`.",
        {
            "theory.memorization.construction": ("memorize", "parameter_count"),
            "theory.memorization.network": ("MemorizingNetwork",),
            "theory.memorization.first_layer": _ALL,
            "theory.memorization.blocks": ("transform_block", "separating_block"),
        },
    ),
    "theory_relu": Page(
        "Theory: networks with ReLUs",
        "Hardt & Ma §5 and what is known since.",
        {
            "theory.relu.search": _ALL,
            "theory.relu.linear_output": _ALL,
            "theory.relu.smooth_units": _ALL,
            "theory.relu.table_1": _ALL,
        },
    ),
    "theory_shortcut": Page(
        "Theory: Hessians at zero",
        "Li et al., Theorem 1.",
        {
            "theory.shortcut_hessians": _ALL,
            "theory.shortcut.networks": ("forward", "loss", "gradient", "least_squares_map", "minimum_loss"),
            "theory.shortcut.activations": ("Activation", "ACTIVATIONS"),
            "theory.shortcut.stationarity": _ALL,
        },
    ),
    "theory_descent": Page(
        "Theory: gradient descent",
        "What descent with identity parametrisations finds, beyond both papers.",
        {
            "theory.descent.from_zero": _ALL,
            "theory.descent.widened": _ALL,
            "theory.descent.saddle_escape": _ALL,
            "theory.descent.balancedness": _ALL,
        },
    ),
    "theory_claims": Page(
        "Theory: claims and checks",
        "Every claim of both papers with its check; [the table](../claims.md) lists them.",
        {"theory.claims": ("check", "Check", "claim_named", "summary"), "theory.claim": ("Claim", "claim")},
    ),
}


def markdown(page: Page) -> str:
    """Returns a page for mkdocstrings: a heading a module, and below it what is shown of it."""
    parts = [f"# {page.title}\n\n{page.text}\n"]
    for module, names in page.members.items():
        members = "\n".join(f"        - {name}" for name in names)
        options = f"\n    options:\n      members:\n{members}" if names else ""
        parts.append(f"::: {module}{options}\n")
    return "\n".join(parts)


def index() -> str:
    """Returns the first page of the API: a row a page."""
    rows = [f"| [{page.title}]({name}.md) | {page.text.split('. ')[0].rstrip('.')} |" for name, page in PAGES.items()]
    return "# API\n\nMade from the docstrings.\n\n| page | what is there |\n| --- | --- |\n" + "\n".join(rows) + "\n"
