/** Tabs as the ARIA pattern has them: one stop for Tab, arrows between them, the open one in the address. */

export function tabs(list, opened) {
  const all = [...list.querySelectorAll("[role=tab]")];
  const panel = (tab) => document.getElementById(tab.getAttribute("aria-controls"));

  function open(tab) {
    for (const one of all) {
      const chosen = one === tab;
      one.setAttribute("aria-selected", String(chosen));
      one.tabIndex = chosen ? 0 : -1;
      panel(one).hidden = !chosen;
    }
    opened(panel(tab).id);
  }

  function choose(tab) {
    open(tab);
    tab.focus();
    history.replaceState(null, "", `#${panel(tab).id}`);
  }

  list.addEventListener("click", (event) => {
    const tab = event.target.closest("[role=tab]");
    if (tab) choose(tab);
  });
  list.addEventListener("keydown", (event) => {
    const place = all.indexOf(document.activeElement);
    const to = { ArrowRight: place + 1, ArrowLeft: place - 1, Home: 0, End: -1 }[event.key];
    if (place < 0 || to === undefined) return;
    event.preventDefault();
    choose(all.at(to % all.length));
  });
  const named = () => all.find((tab) => `#${panel(tab).id}` === location.hash);
  window.addEventListener("hashchange", () => named() && open(named()));
  open(named() ?? all[0]);
}
