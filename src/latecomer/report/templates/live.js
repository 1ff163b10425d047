
"use strict";
// Parts of the page come as HTML that the server has made and escaped; nothing is computed here.
const state = document.getElementById("state"), done = document.getElementById("done");
const source = new EventSource("events" + location.search);
source.onmessage = event => {
  const found = JSON.parse(event.data);
  for (const [name, html] of Object.entries(found.parts)) {
    const section = document.getElementById("part-" + name);
    if (section) section.innerHTML = html;
  }
  if (found.title) { document.title = "Latecomer: " + found.title; document.querySelector("h1").textContent = found.title; }
  state.textContent = found.state;
  done.max = found.steps; done.value = found.arrivals;
  if (found.over) source.close();
};
source.onerror = () => {
  state.textContent = source.readyState === EventSource.CLOSED
    ? "The connection is closed: the run has ended, or its server refused this page."
    : "No connection to the run: trying again. If its process is gone, this is the last that was seen.";
};
