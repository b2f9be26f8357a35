// Before anything is drawn: the theme that was chosen, if one was. Otherwise the system's.
try {
  const chosen = localStorage.getItem("surefoot-theme");
  if (chosen === "dark" || chosen === "light") document.documentElement.dataset.theme = chosen;
} catch { /* storage is switched off */ }
