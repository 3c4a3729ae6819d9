"""The figures of Li et al., *Demystifying ResNet*, each a module with all its parts:

    EXPERIMENTS                 what results.csv must hold for it: (experiment, activations)
    CAPTION                     what it shows, in a line
    READS                       the settings that it reads, beside those of all figures (data, first seed, events)
    SIZE                        those of them that make it as large as the paper's
    SHORTCUT_DEPTHS             of each, some of the setting `depths` must be a multiple; where the figure reads that
    jobs(config, data)          the jobs that compute its rows
    draw(rows)                  the Matplotlib figure, a pure function of the rows of results.csv
    findings(rows)              what the paper says of it, checked on the rows

A new figure is such a module and a line here; all_figures.py loads them. This file imports nothing, so that --help
lists the figures without waiting for Matplotlib.
"""

MODULES = {  # by the paper's number
    "3": "figure_3",
    "5": "figure_5",
    "6": "figure_6",
    "7": "figure_7",
    "8": "figure_8",
    "9": "figure_9",
    "10": "figure_10",
    "convolutional": "convolutional",
}
