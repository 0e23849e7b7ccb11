// The viewer beside the chat: buttons named "look" open a page in it, Escape closes it, arrow keys turn pages.
(() => {
  "use strict";
  const find = (selector, from = document) => from.querySelector(selector);
  const shell = () => find("#ub-shell") || document.body;
  const isOpen = () => shell().classList.contains("ub-viewing");
  let opener = null;
  let awaited = false;
  let sent = 0;

  function report(action, value) {
    const box = find("#ub-look :is(textarea, input)");
    if (!box) return;
    const set = Object.getOwnPropertyDescriptor(Object.getPrototypeOf(box), "value").set;
    set.call(box, JSON.stringify({ action, value, n: ++sent }));
    box.dispatchEvent(new Event("input", { bubbles: true }));
    // Gradio submits a one-line box on Enter.
    box.dispatchEvent(new KeyboardEvent("keypress", { key: "Enter", bubbles: true, cancelable: true }));
  }

  function open(button) {
    if (!button.closest("#ub-viewer")) opener = button;
    awaited = true;
    shell().classList.add("ub-viewing");
    if (opener && opener.isConnected) requestAnimationFrame(() => opener && opener.scrollIntoView({ block: "nearest" }));
    report("look", button.value);
  }

  function close() {
    if (!isOpen()) return;
    shell().classList.remove("ub-viewing");
    report("look-close", "");
    if (opener && opener.isConnected) opener.focus({ preventScroll: true });
    opener = null;
  }

  // Before app.js, which reports every other button, and before a <summary> around the button opens.
  document.addEventListener("click", (event) => {
    const menu = find(".ub-exports[open]");
    if (menu && !event.target.closest(".ub-exports")) menu.open = false;
    const saved = event.target.closest("button.ub-act[name=export]");
    if (saved) {
      event.stopPropagation();
      if (menu) menu.open = false;
      return window.location.assign(`/export/${encodeURIComponent(saved.value)}`);
    }
    const button = event.target.closest("button.ub-act[name=look], button.ub-act[name=look-close]");
    if (!button) return;
    event.preventDefault();
    event.stopPropagation();
    if (button.name === "look") open(button);
    else close();
  }, true);

  document.addEventListener("keydown", (event) => {
    if (!isOpen() || event.isComposing || event.defaultPrevented || event.altKey || event.ctrlKey || event.metaKey) return;
    const typing = event.target.closest && event.target.closest("input, textarea, select, .ub-form, .ub-ask");
    if (event.key === "Escape" && !(typing && typing.matches(".ub-form, .ub-form *, .ub-ask"))) {
      event.preventDefault();
      return close();
    }
    if (typing) return;
    const turn = { ArrowLeft: "previous", ArrowRight: "next" }[event.key];
    const button = turn && find(`#ub-viewer button.ub-view-${turn}`);
    if (button) {
      event.preventDefault();
      open(button);
    }
  });

  // A chip near the upper edge shows its quote below itself, where there is room.
  document.addEventListener("pointerover", (event) => {
    const chip = event.target.closest && event.target.closest(".ub-chip");
    const view = chip && chip.closest("#ub-scroll");
    if (!view) return;
    const tip = find(".ub-tip", chip);
    const above = chip.getBoundingClientRect().top - view.getBoundingClientRect().top;
    chip.classList.toggle("ub-tip-below", tip !== null && above < tip.offsetHeight + 12);
    const over = chip.getBoundingClientRect().left + (tip ? tip.offsetWidth : 0) - view.getBoundingClientRect().right + 12;
    if (tip) tip.style.left = over > 0 ? `${-over}px` : "";
  });

  let seen = "";
  let conversation = null;
  function settle() {
    const here = find("#ub-here")?.title ?? null;
    if (here !== conversation) {
      if (conversation) close();
      conversation = here;
    }
    const view = find("#ub-view");
    const what = view ? find(".ub-view-what", view)?.textContent || "problem" : "";
    if (what === seen) return;
    seen = what;
    if (!view) return;
    if (awaited) view.focus({ preventScroll: true });
    awaited = false;
    const body = find(".ub-view-body", view);
    const mark = body && find(".ub-box, .ub-mark", body);
    if (!body) return;
    const above = mark ? mark.getBoundingClientRect().top - body.getBoundingClientRect().top : 0;
    body.scrollTop = mark ? above - body.clientHeight / 3 : 0;
    if (mark) body.scrollLeft = mark.getBoundingClientRect().left - body.getBoundingClientRect().left - 40;
  }

  let queued = false;
  new MutationObserver(() => {
    if (queued) return;
    queued = true;
    requestAnimationFrame(() => ((queued = false), settle()));
  }).observe(document.documentElement, { childList: true, subtree: true, characterData: true, attributeFilter: ["title"] });
})();
