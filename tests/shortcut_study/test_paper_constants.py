"""The numbers that Li et al. print, typed anew."""

from launching import config_of


def test_the_settings_are_those_of_the_paper():
    paper = config_of("shortcut_study", "--preset=paper")
    assert paper.num_runs == 10  # Figure 5
    assert paper.depth == 16  # Figures 6, 7 and 8
    assert max(paper.depths) == 96 and max(paper.relu_depths) == 64  # Figures 9 and 10
    assert paper.num_epochs == 1000  # §5.3
