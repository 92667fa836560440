"use strict";
document.documentElement.classList.add("js");
for (const list of document.querySelectorAll('[role="tablist"]')) {
  const tabs = [...list.querySelectorAll('[role="tab"]')];
  const panel = (tab) => document.getElementById(tab.getAttribute("aria-controls"));
  const choose = (chosen, focus) => {
    for (const tab of tabs) {
      const on = tab === chosen;
      tab.setAttribute("aria-selected", String(on));
      tab.tabIndex = on ? 0 : -1;
      panel(tab).hidden = !on;
    }
    if (focus) chosen.focus();
  };
  tabs.forEach((tab, i) => {
    tab.addEventListener("click", () => choose(tab, false));
    tab.addEventListener("keydown", (event) => {
      const to = { ArrowRight: i + 1, ArrowLeft: i - 1 + tabs.length, Home: 0, End: tabs.length - 1 }[event.key];
      if (to === undefined) return;
      event.preventDefault();
      choose(tabs[to % tabs.length], true);
    });
  });
  choose(tabs[0], false);
}
for (const table of document.querySelectorAll("table.sortable")) {
  const body = table.tBodies[0];
  const heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => {
      // Numbers are looked at from the highest on, names from a to z; a second click turns that around.
      const first = column === 0 ? "ascending" : "descending";
      const before = head.getAttribute("aria-sort");
      const now = before === null ? first : before === "ascending" ? "descending" : "ascending";
      heads.forEach((other) => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", now);
      const value = (row) => row.cells[column].dataset.v ?? "";
      const order = (a, b) => {
        const [x, y] = [value(a), value(b)];
        if (x === "" || y === "") return (x === "") - (y === ""); // what is missing stays last
        const numbers = !isNaN(x) && !isNaN(y);
        return (now === "ascending" ? 1 : -1) * (numbers ? x - y : x.localeCompare(y));
      };
      body.append(...[...body.rows].sort(order));
    });
  });
}
