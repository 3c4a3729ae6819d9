"""The words of labels, headings and printed lines that output tests look for: a rewording changes only this file.

In a pattern {} stands for a number that the test computes.
"""

import re


class Percentages(str):
    """A pattern whose percentages are written with a space, 10.84 %."""

    def format(self, *numbers, **named):
        return re.sub(r"(?<=\d)%", " %", super().format(*numbers, **named))


TRAIN = {
    "line": r"step +(\d+)  loss ([\d.]+)  train error ([\d.]+) %  {split} error ([\d.]+) %  (\d+) images/s",
    "done": r"done: step (\d+), {split} error ([\d.]+) %, top-5 ([\d.]+) %",
    "test": "test",
    "held-out": "held-out",
}

NEAR_IDENTITY = {
    # The heads of the printed table, and the columns of results.csv below them; shares are printed in percent.
    "numbers": {"‖b‖/‖x‖": "ratio", "bound": "lipschitz", "‖C1‖": "norm_1", "‖C2‖": "norm_2", "cosine": "cosine"},
    "shares": {"above 0": "active", "dead": "dead", "error": "error_without", "exchanged": "error_swapped"},
    "none": "–",
    "removable": Percentages(
        r"error {:.2%}; {:.2%} without the {}smallest of {} branches, with {:.0%} of their operations"
    ),
    "not removable": Percentages(r"error {:.2%}; {:.2%} without the smallest branch, so none can be removed"),
    "duration": {80: "measured in 80 seconds", 290: "measured in 5 minutes"},
    "ylabels": ["‖branch‖ / ‖stream‖", "share of hidden units", "error without one", "error"],
    "xlabels": ["residual block", "blocks left out,\nthe smallest branch first"],
    "legend": {"ratio": "on images: median, quartiles", "lipschitz": "bound for all inputs"}
    | {"active": "values above 0"},
    "dead": "channels that are 0 on all images",
    "stages": ["stage 1", "stage 2"],
}  # fmt: skip

PLOT = {
    "train": Percentages("train error ({:.2%} at the end)"),
    "test": Percentages("test error ({:.2%} at the end)"),
    "drops": "learning rate drops",
    "xlabel": "steps",
    "ylabel": "top-1 error",
    "group": Percentages("{name} ({mean:.2%} ± {deviation:.2%} test error at the end, n = {count})"),
    "one": Percentages("{name} ({error:.2%} test error at the end)"),
    "training": "training error",
    "band": "± a standard deviation over runs",
    "drops of": "learning rate drops, {name}",
}

ABLATIONS = {
    "heads": "variant|learning rate (of those tried)|steps|epochs|diverged|test error|training error|"
    "training cross-entropy",
    "diverged": "{} ({} of {} diverged)",
    "xlabels": ["top-1 test error", "top-1 training error"],
    "optimisers": ["Muon", "momentum SGD"],
    "depth": ("convolutions", "small initialiser"),
}

REPORT = {
    "evaluations": ["Step", "Loss", "Train error", "{split} error", "Top-5", "Learning rate"],
    "compared": ["Run", "Status", "Steps", "Test error or held-out error", "Train error"],
}

# Architectures of launch.shortcut_study, by (shortcut_depth, initialisation).
ARCHITECTURES = {
    (0, "xavier"): "Xavier, no shortcuts",
    (0, "orthogonal"): "orthogonal, no shortcuts",
    (1, "zero"): "1-shortcut",
    (2, "zero"): "2-shortcut",
    (3, "zero"): "3-shortcut",
}

STUDY_COLUMNS = (
    "experiment shortcut_depth initialisation activations batch_norm depth seed learning_rate epoch loss excess_loss "
    "condition_number max_abs p10_abs index gradient_norm norm row_layer column_layer block perturbed_loss "
    "status job seconds"
).split()
STUDY = {
    "norm": r"average $\|W\|_F$",
    "excess": "loss − lowest loss of a linear map",
    "loss": "loss",
    "condition number": r"condition number $|\lambda|_{\max}/|\lambda|_{0.1}$",
    "max_abs": r"largest, $|\lambda|_{\max}$",
    "p10_abs": r"10th percentile, $|\lambda|_{0.1}$",
    "condition_number": "condition number, their ratio",
    "guide": r"$\propto 1/\sqrt{\mathrm{depth}}$",
    "linear": "linear",
    "relu_mid": "ReLU at mid",
    "at zero": "Theorem 1 at zero, {}-shortcut",
    "start at zero": "Theorem 1 at zero for 2-shortcut",
    "infinite": "beyond float64, in some or all runs",
    "infinite along": "{}: beyond float64",
    "index": r"index, the share of $\lambda < 0$",
    "gradient": r"$\|\partial L/\partial W\|$",
    "stable": r"$2/|\lambda|_{{\max}}$ at zero for {}",
    "insensitive": "highest rate that rounding does not change",
    "learning rate": "learning rate",
    "extremes": ("1-shortcut, from $W$", "one shortcut, outputs $Y$"),
    "equivalents": ("no shortcuts, from $I + W$", "no shortcuts, outputs $Y - X$"),
    "blocks": {"A": "$A$: {} blocks", "A transposed": "$A^T$: {} blocks", "zero": "0: {} blocks"},
    "convolutions": "over {}, {}",
    "conv condition_number": "condition number",
    "conv max_abs": r"largest, $|\lambda|_{\max}$",
}
ANSWERS = {True: "holds", False: "does not hold", None: "open"}
NOT_EVALUATED = "not evaluated"

SPECTRUM = {
    "heading": "{}: {:,} trained weights, {:,} training images",
    "matrix": "spectrum of the {}",
    "at start": "spectrum of the {} at the initial weights",
    "hessian": "Hessian",
    "gauss_newton": "Gauss-Newton matrix",
    "trace": "trace: ",
    "near zero": "eigenvalues smaller in size than",
    "condition number": "condition number: ",
    "index": "index: ",
    "interval": "(95 % interval)",
    "density": "density ± standard error",
    "density axis": "density of the eigenvalues",
    "eigenvalue axis": r"eigenvalue $\lambda$ of the Hessian",
    "part axis": "eigenvalue of the part's block of the Hessian",
    "trace axis": "trace of the block, and its 95 % interval",
    "outermost": "the outermost {:.4g} ± {:.1g}",
}

CURVATURE = {
    "heading": "{} of the mean cross-entropy of logits over {:,} examples in {:,} weights, ",
    "trace": "trace {:.4g} ± {:.2g} (95 % interval), {} products",
    "diagonal": ("trace {:.4g} ± {:.2g} (95 % interval), {:,} diagonal entries from {:.4g} to {:.4g}, {} products"),
    "landscape heading": "mean cross-entropy of logits over {:,} examples at {:,} points around the {:,} weights",
    "landscape here": "at the weights {:.4g}; least {:.4g} at ({}), largest {:.4g}",
    "landscape along": "along {}: slope {:.3g}, curvature {:.4g}; the loss at the ends {:.4g}, {:.4g}",
    "directions": ("first direction", "second direction"),
    "loss": "loss",
    "quadratic model": "quadratic model",
}

THEORY = {
    "norms": ("layers $\\ell$", r"$\ell \cdot |||A|||$"),
    "printed_bound": r"$4\pi + 3\gamma$, printed, $\ell \geq 3\gamma$",
    "polar_bound": "bound of polar",
    "paper": "printed construction",
    "principal": "principal root",
    "polar": "polar",
    "no factorisation": "no factorisation here",
    "measured": r"measured, $\tau = {:g}$",
    "guaranteed": "guaranteed by (2.3)",
    "least ratio": r"least at the distance $\tau$ from $I$",
    "ratio bound": r"bound of (2.3), $\ell = 2$",
    "gradient ratios": {"printed": "(2.3)", "by_layer": "product form"},
    "units": "units $R$",
    "one_shortcut": "$n = 1$",
    "two_shortcut": r"$n = 2$: $\mathrm{cond}(M)$",
    "lower_bound": r"proved least for $n = 1$: $R\,\lambda_{\max}(S_{xx})/\sigma_{\min}(M)$",
    "predicted": "Theorem 1, $R = {}$",
    "measured at zero": "measured, $R = {}$",
    "raw": "raw",
    "whitened": "whitened",
    "float32": "{}: float32",
    "expected": "{}: expected at most",
    "float64": "{}: float64",
    "all pass": "all checks pass",
}

RELU_SEARCH = {
    "minimised": {"risk": "f", "gradient_norm": "‖∇f‖"},
    "bad": Percentages("bad local minima {:.1%} (95 %: {:.1%} – {:.1%})"),
    "meaning": {"risk": "minimising $f$", "gradient_norm": r"minimising $\|\nabla f\|$"},
    "risks": "bad local minima: least, median, largest",
    "guide": r"$\propto \tau^4$",
}

DESCENT = {
    "radius": r"a solution for all $\varphi \neq 0$ lies below",
    "end": r"$\tau = 1$: (2.3) ends",
    "target": "$\\varphi = {:g}$",
    "drift": r"$\ell = {}$: drift",
    "drift bound": r"$2\eta(f(0) - f(T))$",
    "rates": {
        "excess": "seen",
        "by_seen_margin": r"margin bound, $\sigma_{\min}(W)$ seen",
        "by_norm": "(2.3), norm seen",
        "by_margin": "margin $c$ at the start",
    },
    "saddle": {
        "predicted": "$n = {}$: predicted",
        "aligned": "measured, aligned start",
        "random": "random start, 3 units",
        "least": "proved least, random start",
    },
    "excess": {
        "at_zero": "$f$ at zero",
        "ball_bound": r"bound, of order $\tau^4$",
        "swapped": "$f$ at the bad minimum beside the swapped teacher",
        "swapped_bound": r"bound, of order $\tau^8$",
    },
}
