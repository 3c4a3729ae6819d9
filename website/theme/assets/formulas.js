// Renders the formulas that pymdownx.arithmatex has marked; a wrong one throws, which tests/test_site.py notices.
for (const element of document.querySelectorAll(".arithmatex")) {
  const source = element.textContent.trim();
  katex.render(source.slice(2, -2), element, { displayMode: source.startsWith("\\["), throwOnError: true });
  // A comma goes into the last box of its formula, as a line could begin with it otherwise.
  const next = element.nextSibling;
  const sign = next instanceof Text && next.data.match(/^[,.;:)]+/)?.[0];
  if (sign) {
    const place = document.createElement("span");
    place.className = "punctuation";
    place.textContent = sign;
    [...element.querySelectorAll(".katex-base")].at(-1).append(place);
    next.data = next.data.slice(sign.length);
  }
}
