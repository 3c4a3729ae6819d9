"""What MkDocs needs to make the site of docs/: hooks, generated pages, a style sheet and KaTeX."""
