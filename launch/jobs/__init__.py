"""Where a job of several workers runs: this machine, Slurm, Kubernetes."""
