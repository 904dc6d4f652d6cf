// Boot: the theme stands before the first paint, so this is a plain script, read before the styles.
(() => {
  let chosen = null;
  try {
    chosen = localStorage.getItem("agentrl-theme");
  } catch {
    // storage may be closed to this page: the system's theme it is
  }
  const dark = chosen ? chosen === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  document.documentElement.dataset.theme = dark ? "dark" : "light";
})();
