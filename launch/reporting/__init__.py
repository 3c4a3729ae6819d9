"""The parts of launch.report: the contents of run directories, the figures of the papers, the page."""
