"use strict";
// Tables of values: sorted by a click on a column's head, filtered by its values. Without scripts all rows are shown.
for (const table of document.querySelectorAll("table.values")) {
  const body = table.tBodies[0];
  const rows = [...body.rows];
  const heads = [...table.tHead.rows[0].cells];
  const key = (row, column) => row.cells[column].dataset.sort ?? row.cells[column].textContent;

  const bar = document.createElement("div");
  bar.className = "filters";
  const found = document.createElement("output");
  const filters = [];
  const apply = () => {
    for (const row of rows) row.hidden = !filters.every((keep) => keep(row));
    found.textContent = `${rows.filter((row) => !row.hidden).length} of ${rows.length} rows`;
  };
  const add = (name, control, keep) => {
    const label = document.createElement("label");
    label.append(name, control);
    bar.append(label);
    control.addEventListener("input", apply);
    filters.push(keep);
  };
  heads.forEach((head, column) => {
    if (!head.hasAttribute("data-filter")) return;
    const select = document.createElement("select");
    const values = [...new Set(rows.map((row) => row.cells[column].textContent))].sort();
    select.append(new Option("all", ""), ...values.map((value) => new Option(value, value)));
    add(head.textContent, select, (row) => !select.value || row.cells[column].textContent === select.value);
  });
  const text = document.createElement("input");
  text.type = "search";
  add("any word", text, (row) => row.textContent.toLowerCase().includes(text.value.trim().toLowerCase()));
  bar.append(found);
  table.parentElement.before(bar);

  heads.forEach((head, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => {
      const up = head.getAttribute("aria-sort") === "descending";
      heads.forEach((other) => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", up ? "ascending" : "descending");
      const numbers = rows.every((row) => !key(row, column) || !Number.isNaN(Number(key(row, column))));
      const order = (a, b) => (numbers ? Number(a) - Number(b) : a.localeCompare(b));
      const [full, empty] = [rows.filter((row) => key(row, column)), rows.filter((row) => !key(row, column))];
      full.sort((a, b) => (up ? 1 : -1) * order(key(a, column), key(b, column)));
      body.append(...full, ...empty);
    });
  });
  apply();
}
