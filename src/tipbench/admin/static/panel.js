// @ts-check
/** Progressive enhancement: every link and form also works without this file. */

/** @param {string} url @param {RequestInit} [init] @returns {Promise<string>} */
async function fragment(url, init = {}) {
  const answer = await fetch(url, { ...init, headers: { "X-Fragment": "1" } });
  if (answer.status === 401 || (init.method === "POST" && answer.redirected)) {
    location.assign(answer.status === 401 ? "/sign-in" : answer.url);
    return new Promise(() => {}); // never settles: the page is leaving
  }
  if (!answer.ok && answer.status !== 422) throw new Error((await answer.text()).slice(0, 300));
  return answer.text();
}

/** @param {Element} target @param {string} html */
function swap(target, html) {
  const active = document.activeElement;
  const key = active && target.contains(active) ? active.getAttribute("data-key") ?? active.id : "";
  const log = target.querySelector(".log");
  const atEnd = !log || log.scrollTop + log.clientHeight >= log.scrollHeight - 8;
  const opened = [...target.querySelectorAll("details[id][open]")].map((each) => each.id);
  alertBox().hidden = true;
  target.innerHTML = html; // our own template's output, escaped there
  for (const id of opened) document.getElementById(id)?.setAttribute("open", "");
  if (key) {
    const again = target.querySelector(`[data-key="${CSS.escape(key)}"]`) ?? document.getElementById(key);
    /** @type {HTMLElement | null} */ (again)?.focus();
  }
  const grown = target.querySelector(".log");
  if (grown && atEnd) grown.scrollTop = grown.scrollHeight;
  else if (grown && log) grown.scrollTop = log.scrollTop;
  if (grown && log) grown.scrollLeft = log.scrollLeft;
  const said = target.querySelector("[data-say]")?.getAttribute("data-say");
  const live = document.getElementById("live");
  if (said && live && live.textContent !== said) live.textContent = said;
  /** @type {HTMLElement | null} */ (target.querySelector('[aria-invalid="true"]'))?.focus();
  turnTo(/** @type {HTMLElement | null} */ (target.querySelector("[data-focus]")));
  enhance(target);
}

/** The next tip is read before it is scored: it has the focus, is in sight, and a second tap does not score it. @param {HTMLElement | null} next */
function turnTo(next) {
  if (!next) return;
  next.focus({ preventScroll: true });
  next.scrollIntoView({ block: matchMedia("(max-width: 47.99rem)").matches ? "start" : "nearest" });
  const form = next.closest("form");
  form?.setAttribute("data-fresh", "");
  setTimeout(() => form?.removeAttribute("data-fresh"), 300);
}

function alertBox() {
  return /** @type {HTMLElement} */ (document.getElementById("alert"));
}

/** @param {unknown} error */
function fail(error) {
  const away = error instanceof TypeError;
  alertBox().textContent = away ? "Not saved: the server does not answer. Try again." : String(error).replace(/^Error: /, "");
  alertBox().hidden = false;
}

/** @param {Element} element */
function targetOf(element) {
  const place = element.getAttribute("data-swap") ?? "";
  return place === "closest" ? element.parentElement : document.querySelector(place);
}

/** Whether that was a click on the dark around it. @param {HTMLDialogElement} dialog @param {MouseEvent} event */
function isBeside(dialog, event) {
  const box = dialog.getBoundingClientRect();
  return event.target === dialog
    && (event.clientX < box.left || event.clientX > box.right || event.clientY < box.top || event.clientY > box.bottom);
}

document.addEventListener("click", async (event) => {
  const clicked = /** @type {Element} */ (event.target);
  if (event.defaultPrevented || event.button !== 0 || event.ctrlKey || event.metaKey || event.shiftKey) return;
  const dialog = /** @type {HTMLDialogElement} */ (document.getElementById("dialog"));
  if (dialog.open && (clicked.closest("[data-close]") || isBeside(dialog, event))) {
    event.preventDefault();
    dialog.close();
    return;
  }
  const link = clicked.closest("a[data-swap], a[data-dialog]");
  if (!link) return;
  event.preventDefault();
  const href = link.getAttribute("href") ?? "";
  try {
    if (link.hasAttribute("data-dialog")) {
      swap(dialog, await fragment(href));
      const title = dialog.querySelector("h1");
      dialog.setAttribute("aria-label", title?.textContent ?? "Form");
      dialog.showModal();
      title?.setAttribute("tabindex", "-1");
      title?.focus();
      return;
    }
    const target = targetOf(link);
    if (!target) return;
    swap(target, await fragment(href));
    if (target.id === "judge") return;
    history.replaceState(null, "", href);
    document.querySelectorAll("tr.chosen").forEach((row) => row.classList.remove("chosen"));
    const line = new URL(href, location.href).searchParams.get("line");
    document.querySelectorAll("tr[data-line]").forEach((row) => row.classList.toggle("chosen", row.getAttribute("data-line") === line));
  } catch (error) {
    fail(error);
  }
});

document.addEventListener("submit", async (event) => {
  const form = /** @type {HTMLFormElement} */ (event.target);
  const target = form.hasAttribute("data-swap") ? targetOf(form) : null;
  if (!target) return;
  event.preventDefault();
  if (form.getAttribute("aria-busy") === "true") return; // a second press before the answer
  form.setAttribute("aria-busy", "true");
  const body = new URLSearchParams();
  for (const [name, value] of new FormData(form, event.submitter)) body.append(name, String(value));
  try {
    swap(target, await fragment(form.getAttribute("action") ?? location.href, { method: "POST", body }));
  } catch (error) {
    form.removeAttribute("aria-busy");
    fail(error);
  }
});

/** @param {Element} root */
function enhance(root) {
  root.querySelectorAll("[data-poll]").forEach((element) => {
    const again = async () => {
      if (!element.isConnected || !element.parentElement) return;
      try {
        swap(element.parentElement, await fragment(element.getAttribute("data-poll") ?? ""));
      } catch {
        setTimeout(again, 2000); // the server is away: it comes back
      }
    };
    setTimeout(again, Number(element.getAttribute("data-every") ?? 1000));
  });
  root.querySelectorAll("form[data-plan]").forEach((form) => forecast(/** @type {HTMLFormElement} */ (form)));
  root.querySelectorAll("table.sortable").forEach((table) => sortable(/** @type {HTMLTableElement} */ (table)));
}

/** What an order would make, told while it is filled in. @param {HTMLFormElement} form */
function forecast(form) {
  let asked = 0;
  let timer = 0;
  const ask = async () => {
    const mine = ++asked;
    const query = new URLSearchParams();
    for (const [name, value] of new FormData(form)) query.append(name, String(value));
    try {
      const said = await fragment(`${form.getAttribute("data-plan")}?${query}`);
      const line = form.querySelector("#plan");
      if (mine === asked && line) line.innerHTML = said; // our own template's output, escaped there
    } catch {
      // Only a forecast: what is wrong is said when it is started.
    }
  };
  form.addEventListener("input", () => {
    clearTimeout(timer);
    timer = setTimeout(ask, 250);
  });
}

/** @param {HTMLTableElement} table */
function sortable(table) {
  const body = table.tBodies[0];
  const heads = [...(table.tHead?.rows[0].cells ?? [])];
  heads.forEach((head, column) => {
    if (head.hasAttribute("data-nosort") || head.querySelector("button")) return;
    const button = document.createElement("button");
    button.type = "button";
    button.append(...head.childNodes);
    head.replaceChildren(button);
    button.addEventListener("click", () => {
      const down = head.getAttribute("aria-sort") === "ascending";
      heads.forEach((each) => each.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      const key = (/** @type {HTMLTableRowElement} */ row) => row.cells[column]?.dataset.sort ?? row.cells[column]?.textContent?.trim() ?? "";
      const rows = [...body.rows].sort((a, b) => key(a).localeCompare(key(b), undefined, { numeric: true }) * (down ? -1 : 1));
      body.append(...rows);
    });
  });
}

enhance(document.body);
const grown = document.querySelector(".log");
if (grown) grown.scrollTop = grown.scrollHeight;
document.documentElement.dataset.ready = "1";
