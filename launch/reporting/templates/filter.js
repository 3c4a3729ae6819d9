(() => {
  const form = document.querySelector("#filter");
  const rows = [...document.querySelectorAll("#claims tbody tr")];
  const text = new Map(rows.map((row) => [row, row.textContent.toLowerCase()]));
  const apply = () => {
    const words = form.words.value.toLowerCase().split(/\s+/).filter(Boolean);
    let shown = 0;
    for (const row of rows) {
      const fits = form.verdict.value === "" || row.dataset.verdict === form.verdict.value;
      row.hidden = !(fits && words.every((word) => text.get(row).includes(word)));
      shown += !row.hidden;
    }
    document.querySelector("#shown").textContent = `${shown} of ${rows.length}`;
  };
  form.addEventListener("input", apply);
  form.addEventListener("submit", (event) => event.preventDefault());
  form.hidden = false;
  apply();
})();
