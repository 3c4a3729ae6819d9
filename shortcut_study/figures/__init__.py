"""The figures of Li et al., *Demystifying ResNet*, each a module with all its parts:

    EXPERIMENTS                 the rows of results.csv that it needs: (experiment, activations)
    CAPTION                     what it shows, in one sentence
    READS                       the settings that it reads, beside those of all figures (data, first seed, events)
    SIZE                        those of them that make it as large as the paper's
    SHORTCUT_DEPTHS             some of the setting `depths` must be a multiple of each; if the figure reads that
    jobs(config, data)          the jobs that compute its rows
    draw(rows)                  the Matplotlib figure, a pure function of the rows of results.csv
    findings(rows)              what the paper says of it, checked on the rows

A new figure is such a module and an entry here; all_figures.py loads them. This file imports nothing, so that --help
lists the figures without waiting for Matplotlib.
"""

MODULES = {  # by the paper's number
    "3": "figure_3",
    "4": "figure_4",
    "5": "figure_5",
    "6": "figure_6",
    "7": "figure_7",
    "8": "figure_8",
    "9": "figure_9",
    "10": "figure_10",
    "11": "figure_11",
    "convolutional": "convolutional",
}
ELSEWHERE = {  # figures of the paper that the study does not draw: what they are, and the command that shows them
    "1": (
        "figure 1 is a diagram of where pre, mid and post stand in a unit; the layers of a network show them: "
        "python -c \"from shortcut_study.network import ShortcutNetwork as N; n = N(10, 1, 2, 'relu', 'relu', 'relu'); "
        "n.to_keras(n.initialize('zero', 0)).summary()\""
    ),
    "2": (
        "figure 2 has the kernel norms of ResNets by depth; launch.ablations trains them: python -m launch.ablations "
        "--experiment=norms --dataset=cifar10 --data_dir=data --run_dir=runs/norms"
    ),
}
