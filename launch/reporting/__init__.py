"""The parts of launch.report: quick runs, the contents of run directories, the figures of the papers, the page."""
