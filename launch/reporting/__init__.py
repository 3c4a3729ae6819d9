"""What launch.report is made of: quick runs, what run directories hold, the paper's figures, the page."""
