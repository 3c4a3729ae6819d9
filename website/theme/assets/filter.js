(() => {
  const form = document.querySelector("#filter");
  if (!form) return; // a page of the site without a table to filter
  const choices = [...form.querySelectorAll("select")];
  const rows = [...document.querySelectorAll("#claims tbody tr")];
  const text = new Map(rows.map((row) => [row, row.textContent.toLowerCase()]));
  const apply = () => {
    const words = form.words.value.toLowerCase().split(/\s+/).filter(Boolean);
    let shown = 0;
    for (const row of rows) {
      const fits = choices.every(({ name, value }) => value === "" || row.dataset[name] === value);
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
