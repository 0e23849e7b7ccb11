// Choosing what is read: adds up the boxes of the tree, and reports what is chosen through a box of its own.
(() => {
  "use strict";
  const find = (selector, from = document) => from.querySelector(selector);
  const all = (selector, from = document) => [...from.querySelectorAll(selector)];
  let sent = 0;

  function send(action, value, typed = "", to = "#ub-choose") {
    const box = find(`${to} :is(textarea, input)`);
    if (!box) return;
    const set = Object.getOwnPropertyDescriptor(Object.getPrototypeOf(box), "value").set;
    set.call(box, JSON.stringify({ action, value, typed, n: ++sent }));
    box.dispatchEvent(new Event("input", { bubbles: true }));
    box.dispatchEvent(new KeyboardEvent("keypress", { key: "Enter", bubbles: true, cancelable: true }));
  }

  // What is being asked: the question in the box, else the last one that was sent.
  function question() {
    const typed = find("#ub-question textarea")?.value.trim();
    return typed || all("#ub-history .ub-bubble").pop()?.textContent.trim() || "";
  }

  const read = (reading) => find(`#ub-reading input[value="${reading}"]`)?.click();
  const leaves = (from) => all(".ub-pick-leaf", from);

  function recount(panel) {
    let total = 0;
    for (const branch of all("details.ub-branch", panel).reverse()) {
      const head = find(":scope > summary input", branch);
      const inside = leaves(branch);
      const chosen = inside.filter((box) => box.checked).length;
      head.checked = chosen === inside.length;
      head.indeterminate = chosen > 0 && chosen < inside.length;
      if (head.classList.contains("ub-pick-document") && chosen) total += Number(head.value.split(":")[2]);
    }
    for (const box of leaves(panel)) if (box.checked) total += Number(box.value.split(":")[2]);
    const room = Number(find(".ub-chooser-room", panel).textContent);
    find(".ub-chooser-count", panel).textContent = total.toLocaleString("en-US");
    panel.classList.toggle("ub-chooser-full", total > room);
  }

  function ranges(panel) {
    const chosen = {};
    const whole = {};
    for (const box of leaves(panel)) {
      const [id, pages] = box.value.split(":");
      (chosen[id] ??= []).push(...(box.checked ? [pages] : []));
      whole[id] = (whole[id] ?? true) && box.checked;
    }
    const entries = Object.entries(chosen).filter(([id]) => !whole[id]);
    return JSON.stringify(Object.fromEntries(entries.map(([id, pages]) => [id, pages.join(",") || "none"])));
  }

  document.addEventListener("change", (event) => {
    const panel = event.target.closest?.(".ub-chooser");
    if (!panel || event.target.type !== "checkbox") return;
    if (!event.target.classList.contains("ub-pick-leaf"))
      for (const box of leaves(event.target.closest("details"))) box.checked = event.target.checked;
    recount(panel);
  });

  // After a choice the whole text is read; a question that did not fit is asked again.
  function chosen() {
    read("whole");
    if (find("#ub-history .ub-choices")) again = true;
  }
  let again = false;

  document.addEventListener("click", (event) => {
    const button = event.target.closest("button.ub-act");
    if (!button || !/^(choose|changes)-/.test(button.name)) return;
    event.stopPropagation();
    const panel = button.closest(".ub-chooser");
    if (button.name === "choose-close") return send("close", "");
    if (button.name === "choose-parts") return read("parts"), send("close", "");
    if (button.name === "choose-open") return send("choose-open", "", question());
    if (/^choose-(these|suggested|map)$/.test(button.name)) chosen();
    if (button.name === "choose-these") return send("choose-these", "", ranges(panel));
    button.classList.add("ub-working");
    send(button.name, button.value, question());
  }, true);

  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape" && event.target.closest?.(".ub-chooser")) send("close", "");
  });

  // A panel that has just come is counted and gets the focus; one of another conversation goes.
  let place = null;
  let counted = null;
  new MutationObserver(() => {
    const panel = find(".ub-chooser");
    if (panel && panel !== counted) {
      counted = panel;
      recount(panel);
      find(".ub-chooser-title", panel)?.focus({ preventScroll: true });
    }
    if (!panel && counted) {
      counted = null;
      find("#ub-question textarea")?.focus({ preventScroll: true });
      if (again) {
        again = false;
        send("retry-whole", "", "", "#ub-action");
      }
    }
    const here = find("#ub-here")?.title ?? null;
    if (place && here !== place && panel) send("close", "");
    place = here;
  }).observe(document.documentElement, { childList: true, subtree: true });
})();
