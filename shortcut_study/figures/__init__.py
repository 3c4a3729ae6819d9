"""The figures of Li et al., *Demystifying ResNet*, one a module: its jobs, its drawing, its findings.

Each module has EXPERIMENTS, what results.csv must hold for it: (experiment, activations), and

    jobs(config, data) -> the jobs that compute its rows
    draw(rows) -> Matplotlib figure, a pure function of the rows of results.csv
    findings(rows) -> what the paper says of it, judged on the rows
"""
