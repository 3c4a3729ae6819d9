// Renders the formulas that pymdownx.arithmatex has marked; a wrong one throws, which tests/test_site.py notices.
for (const element of document.querySelectorAll(".arithmatex")) {
  const source = element.textContent.trim();
  katex.render(source.slice(2, -2), element, { displayMode: source.startsWith("\\["), throwOnError: true });
}
