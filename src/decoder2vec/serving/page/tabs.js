/** Tabs after the ARIA pattern: one tab stop, arrow keys between tabs, and the open tab in the URL. */

export function startTabs(tablist, onOpen) {
  const tabs = [...tablist.querySelectorAll("[role=tab]")];
  const panelOf = (tab) => document.getElementById(tab.getAttribute("aria-controls"));

  function open(openTab) {
    for (const tab of tabs) {
      const isOpen = tab === openTab;
      tab.setAttribute("aria-selected", String(isOpen));
      tab.tabIndex = isOpen ? 0 : -1;
      panelOf(tab).hidden = !isOpen;
    }
    onOpen(panelOf(openTab).id);
  }

  function select(tab) {
    open(tab);
    tab.focus();
    history.replaceState(null, "", `#${panelOf(tab).id}`);
  }

  tablist.addEventListener("click", (event) => {
    const tab = event.target.closest("[role=tab]");
    if (tab) select(tab);
  });
  tablist.addEventListener("keydown", (event) => {
    const index = tabs.indexOf(document.activeElement);
    const target = { ArrowRight: index + 1, ArrowLeft: index - 1, Home: 0, End: -1 }[event.key];
    if (index < 0 || target === undefined) return;
    event.preventDefault();
    select(tabs.at(target % tabs.length));
  });
  const tabInUrl = () => tabs.find((tab) => `#${panelOf(tab).id}` === location.hash);
  window.addEventListener("hashchange", () => tabInUrl() && open(tabInUrl()));
  open(tabInUrl() ?? tabs[0]);
}
