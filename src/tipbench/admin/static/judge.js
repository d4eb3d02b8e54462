// @ts-check
/** The keys and taps of the judging desk. A plain script in the head, so that no key is lost before the modules run. */
(() => {
  const root = document.documentElement, KEYS = "tipbench-single-keys";
  root.dataset.desk = "1"; // what only a script can unfold is folded only where one runs
  /** One key a frame: what nobody can have seen is not scored. */
  let held = false;
  /** The score under the finger or the mouse; arrow keys choose, too, and must not save. @type {Element | null} */
  let tapped = null;

  function desk() {
    return /** @type {HTMLFormElement | null} */ (document.querySelector("#judge form"));
  }

  /** @param {HTMLFormElement} form */
  function scales(form) {
    return [...form.querySelectorAll("fieldset[data-scale]")];
  }

  /** The last score saves, by key and by tap. @param {HTMLFormElement} form */
  function saveIfScored(form) {
    if (scales(form).some((set) => !set.querySelector(":checked"))) return;
    form.requestSubmit(/** @type {HTMLButtonElement} */ (form.querySelector('button[data-key="enter"]')));
  }

  /** @param {HTMLFormElement} form @param {string} key */
  function score(form, key) {
    const sets = scales(form);
    let open = sets.find((set) => !set.querySelector(":checked"));
    const again = !open && form.hasAttribute("data-again");
    if (again) open = sets[0]; // judged before: a score starts it over
    const radio = /** @type {HTMLInputElement | null | undefined} */ (open?.querySelector(`input[value="${key}"]`));
    if (!radio) return;
    if (again) form.querySelectorAll("fieldset[data-scale] :checked").forEach((each) => { /** @type {HTMLInputElement} */ (each).checked = false; });
    radio.checked = true;
    saveIfScored(form);
  }

  /** Takes back the last score of this item; false when it has none. @param {HTMLFormElement} form */
  function unscore(form) {
    const given = [...form.querySelectorAll("fieldset[data-scale] :checked")];
    const last = /** @type {HTMLInputElement | undefined} */ (given.at(-1));
    if (last) last.checked = false;
    return Boolean(last);
  }

  function keysAreOn() {
    return localStorage.getItem(KEYS) !== "off";
  }

  document.addEventListener("keydown", (event) => {
    const target = /** @type {HTMLElement} */ (event.target);
    tapped = null;
    if (event.key === "Escape" && target.id === "reason") target.blur();
    if (event.repeat || event.ctrlKey || event.metaKey || event.altKey || event.isComposing) return;
    if (target.matches("textarea, select, input:not([type=radio]):not([type=checkbox])")) return;
    const form = desk();
    if (!form || form.getAttribute("aria-busy") === "true" || document.querySelector("dialog[open]")) return;
    const end = /** @type {HTMLElement | null} */ (form.querySelector('[data-testid="done"] button[data-key="enter"]'));
    if (event.key === "Enter" && end && !target.closest("a, button, summary, input")) end.click();
    const key = event.key.toLowerCase();
    if (!/^([1-9]|u|c)$/.test(key) || !keysAreOn()) return;
    event.preventDefault();
    if (held) return;
    held = true;
    requestAnimationFrame(() => { held = false; });
    if (key === "c") /** @type {HTMLElement | null} */ (form.querySelector("#reason"))?.focus();
    else if (key !== "u") score(form, key);
    else if (!unscore(form)) /** @type {HTMLElement | null} */ (form.querySelector('a[data-key="u"]'))?.click();
  });

  document.addEventListener("pointerdown", (event) => {
    tapped = /** @type {Element} */ (event.target).closest(".score");
  });

  document.addEventListener("change", (event) => {
    const input = /** @type {HTMLInputElement} */ (event.target);
    const form = desk();
    if (input.closest("#keys")) localStorage.setItem(KEYS, input.checked ? "on" : "off");
    if (tapped && form && tapped.contains(input) && form.getAttribute("aria-busy") !== "true") saveIfScored(form);
  });

  document.addEventListener("click", (event) => {
    const fold = /** @type {Element} */ (event.target).closest("button.fold");
    if (!fold) return;
    root.toggleAttribute("data-unfolded");
    fold.setAttribute("aria-expanded", String(root.hasAttribute("data-unfolded")));
    fold.textContent = root.hasAttribute("data-unfolded") ? "Fold" : "Show all";
  });

  document.addEventListener("DOMContentLoaded", () => {
    const row = document.getElementById("keys");
    if (!row) return;
    /** @type {HTMLInputElement} */ (row.querySelector("input")).checked = keysAreOn();
    row.hidden = false;
  });
})();
