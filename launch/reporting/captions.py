"""Captions of the figures of a report, by name."""

from shortcut_study.figures.all_figures import FIGURES

CAPTIONS = {
    "ablations": "Errors of the compared networks: one dot per seed, a bar at the mean",
    "blocks": "Spectra of the blocks of the Hessian that belong to single residual blocks",
    "condition_numbers": "Condition number of the Hessian at zero, by the number of units (Li et al., Theorem 1)",
    "depths": "Errors by depth at equal operations, with the small and the standard initialiser",
    "descent": "Excess risk of projected gradient descent and its guarantee (Hardt & Ma, (2.3))",
    "eigenvalues": "Excess risk and norm of the layers during descent, for eigenvalues from −1 to 2",
    "excess_by_radius": "Risk at the swapped minimum and at zero, by the radius",
    "gradient_ratios": "Squared gradient norm over its lower bounds (Hardt & Ma, (2.3), and the product form)",
    "kernel_norms": "Average Frobenius norm of the kernels during training, by depth (Li et al., Figure 2)",
    "layers": "Spectra of the blocks of the Hessian that belong to single layers",
    "linear_output": "Risk of bad local minima against that of the best linear predictor",
    "map": "Steps to the target by depth and step size",
    "memorization": "Weights per sample, smallest gap and error in float32 of memorising networks, by width",
    "norms": "ℓ times the largest norm of a layer, by the number of layers ℓ, between its bounds (Theorem 2.1)",
    "printed_construction": "Where the printed construction of Theorem 2.1 exceeds its bound",
    "rates": "Excess risk of descent and three guarantees; drift of the imbalances and its bound",
    "relu_search": "Critical points of ReLU networks near zero, by risk and curvature",
    "rotations": "Paths of w in the complex plane for rotations",
    "saddle": "Steps to leave zero, by the size of the start",
    "spectra": "Eigenvalues of the Hessian at zero for shortcuts of 1, 2 and 3 matrices (Li et al., Theorem 1)",
    "spectrum": "Density of the eigenvalues of a trained network's Hessian",
} | {f"figure_{name}": figure.CAPTION for name, figure in FIGURES.items()}
