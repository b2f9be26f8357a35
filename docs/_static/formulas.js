for (const element of document.querySelectorAll(".formula"))
  katex.render(element.textContent, element, { displayMode: element.tagName === "DIV", throwOnError: false });
