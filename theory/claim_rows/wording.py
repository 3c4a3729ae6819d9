"""What the rows of later papers, whose texts this project does not hold, say of their statements and proofs."""

RESTATED = "holds: as restated here; the printed constants were not verified"
OUR_PROOF = "complete: ours, in docs/descent.md; the printed one was not read"
