"""The words of labels, headings and printed lines that output tests look for: a rewording changes this file alone.

In a pattern {} stands for a number that the test computes.
"""

TRAIN = {
    "line": r"step +(\d+)  loss ([\d.]+)  train error ([\d.]+)%  {split} error ([\d.]+)%  (\d+) images/s",
    "done": r"done: step (\d+), {split} error ([\d.]+)%, top-5 ([\d.]+)%",
    "test": "test",
    "held-out": "held-out",
}

NEAR_IDENTITY = {
    # The heads of the printed table, and the columns of results.csv below them; shares are printed in percent.
    "numbers": {"‖b‖/‖x‖": "ratio", "bound": "lipschitz", "‖C1‖": "norm_1", "‖C2‖": "norm_2", "cosine": "cosine"},
    "shares": {"above 0": "active", "dead": "dead", "error": "error_without", "exchanged": "error_swapped"},
    "none": "–",
    "removable": r"error {:.2%}; {:.2%} without the {}smallest of {} branches, with {:.0%} of their operations",
    "not removable": r"error {:.2%}; {:.2%} without the smallest branch, so none can be removed",
    "duration": {80: "measured in 80 seconds", 290: "measured in 5 minutes"},
    "ylabels": ["‖branch‖ / ‖stream‖", "share of hidden units", "error without one", "error"],
    "xlabels": ["residual block", "blocks left out,\nthe smallest branch first"],
    "legend": {"ratio": "on images: median, quartiles", "lipschitz": "bound for all inputs"}
    | {"active": "values above 0"},
    "dead": "channels that are 0 on all images",
    "stages": ["stage 1", "stage 2"],
}  # fmt: skip

PLOT = {
    "train": "train error ({:.2%} at the end)",
    "test": "test error ({:.2%} at the end)",
    "drops": "learning rate drops",
    "xlabel": "steps",
    "ylabel": "top-1 error",
    "group": "{name} ({mean:.2%} ± {deviation:.2%} test error at the end, n = {count})",
    "one": "{name} ({error:.2%} test error at the end)",
    "training": "training error",
    "band": "± a standard deviation over runs",
    "drops of": "learning rate drops, {name}",
}

ABLATIONS = {
    "heads": "variant|learning rate (of those tried)|steps|epochs|diverged|test error|training error|"
    "training cross-entropy",
    "diverged": "{} ({} of {} diverged)",
    "xlabels": ["top-1 test error", "top-1 training error"],
    "optimisers": {"Muon": "C0", "momentum SGD": "C3"},
    "depth": ("convolutions", "small initialiser"),
}

REPORT = {
    "evaluations": ["Step", "Loss", "Train error", "{split} error", "Top-5", "Learning rate"],
    "compared": ["Run", "Status", "Steps", "Test error or held-out error", "Train error"],
    "paper": "{} top-1 test error",
    "here": "{error:.2%} top-1 {split} error after {steps} steps",
    "training": "training error {:.2%}",
}
