// The little that Gradio does not do: buttons in our own markup, files dropped anywhere, the address, scrolling, the theme.
// Nothing is kept but the choice of light or dark.
(() => {
  "use strict";
  const find = (selector, from = document) => from.querySelector(selector);
  const THEME = "unabridged-theme";
  const narrow = matchMedia("(max-width: 760px)");
  const EDITS = new Set(["rename", "rename-ask", "delete-ask", "edit-cancel"]);
  let sent = 0;

  function send(action, value, typed = "") {
    const box = find(`${EDITS.has(action) ? "#ub-edits" : "#ub-action"} :is(textarea, input)`);
    if (!box) return;
    const set = Object.getOwnPropertyDescriptor(Object.getPrototypeOf(box), "value").set;
    set.call(box, JSON.stringify({ action, value, typed, n: ++sent }));
    box.dispatchEvent(new Event("input", { bubbles: true }));
    // Gradio submits a one-line box on Enter.
    box.dispatchEvent(new KeyboardEvent("keypress", { key: "Enter", bubbles: true, cancelable: true }));
  }
  const shell = () => find("#ub-shell") || document.body;

  document.addEventListener("click", (event) => {
    const button = event.target.closest("button.ub-act");
    if (button) {
      if (button.name === "copy") {
        const answer = find(".ub-text", button.closest(".ub-message"));
        if (!answer) return;
        answer.classList.add("ub-copying"); // without the chips of its citations
        const copied = answer.innerText;
        answer.classList.remove("ub-copying");
        return navigator.clipboard.writeText(copied);
      }
      if (button.name === "menu") return shell().classList.toggle("ub-side-shown");
      const input = button.classList.contains("ub-take-input") && find("input", button.closest(".ub-form"));
      if (input && !input.value.trim()) return input.focus();
      const ticked = button.classList.contains("ub-take-ticks") && [...button.closest(".ub-form").querySelectorAll("input:checked")];
      send(button.name, button.value, input ? input.value : ticked ? ticked.map((box) => box.value).join("+") : "");
      if (input && input.type === "password") input.value = "";
      if (button.name === "open") shell().classList.remove("ub-side-shown");
    } else if (event.target.closest("#ub-new")) {
      shell().classList.remove("ub-side-shown");
    } else if (event.target.closest("#ub-theme")) {
      const dark = document.body.classList.toggle("dark");
      localStorage.setItem(THEME, dark ? "dark" : "light");
    } else if (narrow.matches && shell().classList.contains("ub-side-shown") && !event.target.closest("#ub-side")) {
      shell().classList.remove("ub-side-shown");
    }
  });

  document.addEventListener("keydown", (event) => {
    if (event.isComposing) return;
    const form = event.target.closest && event.target.closest(".ub-form, .ub-ask");
    const name = form && { Enter: "input" === event.target.localName && ".ub-take-input", Escape: ".ub-escape" }[event.key];
    const button = name && find(name, form);
    if (button) {
      event.preventDefault();
      button.click();
    }
  });

  // A sentence of an answer that is pointed at or has the focus shows where the model looked while it wrote it.
  let looked = "";
  function look(event) {
    const sentence = event.target.closest && event.target.closest(".ub-s");
    const number = sentence ? [...sentence.classList].find((name) => /^ub-s-\d+$/.test(name)) || "" : "";
    if (number === looked && (!number || sentence.classList.contains("ub-on"))) return;
    looked = number;
    document.querySelectorAll(".ub-on, .ub-sentence-shown").forEach((shown) => shown.classList.remove("ub-on", "ub-sentence-shown"));
    const message = number && sentence.closest(".ub-message");
    const strip = message && find(".ub-looked", message);
    if (!strip) return;
    strip.classList.add("ub-sentence-shown");
    message.querySelectorAll(`.${number}, .${number.replace("ub-s-", "ub-of-")}`).forEach((part) => part.classList.add("ub-on"));
  }
  document.addEventListener("pointerover", look);
  document.addEventListener("focusin", look);

  // Files may be dropped anywhere; Gradio's own upload button takes them from there.
  let depth = 0;
  const carriesFiles = (event) => event.dataTransfer && [...event.dataTransfer.types].includes("Files");
  const dropping = (on) => shell().classList.toggle("ub-dropping", on);
  document.addEventListener("dragenter", (event) => carriesFiles(event) && (depth++, dropping(true)), true);
  document.addEventListener("dragleave", (event) => carriesFiles(event) && --depth <= 0 && ((depth = 0), dropping(false)), true);
  document.addEventListener("dragover", (event) => carriesFiles(event) && event.preventDefault(), true);
  document.addEventListener("drop", (event) => {
    if (!carriesFiles(event)) return;
    event.preventDefault();
    event.stopPropagation();
    depth = 0;
    dropping(false);
    giveFiles(event.dataTransfer.files);
  }, true);

  function giveFiles(files) {
    const input = find("#ub-attach")?.parentElement?.querySelector("input[type=file]") || find("input[type=file]");
    if (!input || !files.length) return;
    input.files = files;
    input.dispatchEvent(new Event("change", { bubbles: true }));
  }

  let following = true;
  function scroller() {
    return find("#ub-scroll");
  }
  document.addEventListener("scroll", (event) => {
    const view = scroller();
    if (event.target === view) following = view.scrollHeight - view.scrollTop - view.clientHeight < 80;
  }, true);

  let shown = null;
  function settle() {
    const here = find("#ub-here");
    if (here && here.title !== shown) {
      shown = here.title;
      following = true;
      history.replaceState(null, "", shown ? `/?c=${encodeURIComponent(shown)}` : "/");
      document.title = find(".ub-title")?.textContent || "Unabridged";
    }
    const wanted = find(".ub-focus:not(.ub-focused)");
    if (wanted) {
      wanted.classList.add("ub-focused");
      wanted.focus();
      if (wanted.select) wanted.select();
    }
    const view = scroller();
    if (view && following) view.scrollTop = view.scrollHeight;
  }

  function theme() {
    const chosen = localStorage.getItem(THEME);
    if (chosen) document.body.classList.toggle("dark", chosen === "dark");
  }

  let queued = false;
  new MutationObserver(() => {
    if (queued) return;
    queued = true;
    requestAnimationFrame(() => ((queued = false), settle()));
  }).observe(document.documentElement, { childList: true, subtree: true, characterData: true });

  const started = setInterval(() => {
    if (!find("#ub-shell")) return;
    clearInterval(started);
    theme();
    settle();
  }, 50);
})();
