// @ts-check
/** The keys of the judging desk. A plain script in the head, so that no key is lost before the modules run. */
(() => {
  /** One key a frame: what nobody can have seen is not scored. */
  let held = false;

  /** @param {HTMLFormElement} form @param {string} key */
  function score(form, key) {
    const open = [...form.querySelectorAll("fieldset[data-scale]")].find((set) => !set.querySelector(":checked"));
    const radio = /** @type {HTMLInputElement | null | undefined} */ (open?.querySelector(`input[value="${key}"]`));
    if (!radio) return false;
    radio.checked = true;
    const left = [...form.querySelectorAll("fieldset[data-scale]")].some((set) => !set.querySelector(":checked"));
    if (!left) form.requestSubmit(/** @type {HTMLButtonElement} */ (form.querySelector('button[data-key="enter"]')));
    return true;
  }

  /** Takes back the last score of this item; false when it has none. @param {HTMLFormElement} form */
  function unscore(form) {
    const given = [...form.querySelectorAll("fieldset[data-scale] :checked")];
    const last = /** @type {HTMLInputElement | undefined} */ (given.at(-1));
    if (last) last.checked = false;
    return Boolean(last);
  }

  document.addEventListener("keydown", (event) => {
    const target = /** @type {HTMLElement} */ (event.target);
    if (event.key === "Escape" && target.id === "reason") target.blur();
    if (event.repeat || event.ctrlKey || event.metaKey || event.altKey || event.isComposing) return;
    if (target.matches("textarea, select, input:not([type=radio]):not([type=checkbox])")) return;
    const form = /** @type {HTMLFormElement | null} */ (document.querySelector("#judge form"));
    if (!form || form.getAttribute("aria-busy") === "true" || document.querySelector("dialog[open]")) return;
    const key = event.key.toLowerCase();
    if (!/^([1-9]|u|c)$/.test(key)) return;
    event.preventDefault();
    if (held) return;
    held = true;
    requestAnimationFrame(() => { held = false; });
    if (key === "c") /** @type {HTMLElement | null} */ (form.querySelector("#reason"))?.focus();
    else if (key !== "u") score(form, key);
    else if (!unscore(form)) /** @type {HTMLElement | null} */ (form.querySelector('a[data-key="u"]'))?.click();
  });
})();
